"""What happens to one request, whatever it came by: checked, made durable, counted.

Transports authenticate, read and answer; they know an `Outcome` and nothing else of what happens here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar, TypeVarTuple, Unpack

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.answers import Outcome, Result
from rootwalk.otel_receiver.backlog import Backlog
from rootwalk.otel_receiver.content_encoding import decompress
from rootwalk.otel_receiver.counters import IngestCounters
from rootwalk.otel_receiver.group_commit import GroupCommit
from rootwalk.otel_receiver.journal import encode_record
from rootwalk.otel_receiver.memory_gate import (
    JOURNAL_EXPANSION,
    REQUEST_OVERHEAD_BYTES,
    Admission,
    MemoryGate,
    Reservation,
    needed_bytes,
)
from rootwalk.otel_receiver.request_checks import (
    REJECTION_REASONS,
    CheckedRequest,
    describe_rejected,
    read_json_request,
    read_request,
)
from rootwalk.otel_receiver.request_split import is_cut, split_request
from rootwalk.otel_receiver.signals import Signal

__all__ = ["MAX_REQUEST_BYTES", "Ingest", "IngestRefusal", "no_room_now"]

logger = logging.getLogger(__name__)

# OTLP 1.11 recommends this limit, before and after decompression.
MAX_REQUEST_BYTES: Final = 64 * 1024 * 1024
# Larger ones are read by a thread, one at a time: they would hold up every other sender for longer than 1 ms.
INLINE_BYTES: Final = 512 * 1024
# A body that is still compressed counts as so many times larger; bombs are larger still and cost at most 60 ms.
USUAL_COMPRESSION: Final = 8

_T = TypeVar("_T")
_Arguments = TypeVarTuple("_Arguments")


class IngestRefusal(Exception):  # noqa: N818 -- an answer, not a fault
    """A request ends before it is durable; `outcome` is the answer."""

    def __init__(self, result: Result, message: str) -> None:
        super().__init__(message)
        self.outcome = Outcome(result, message=message)


class Ingest:
    """Takes request bodies and answers when they are durable; `stop` when no request is in progress.

    Args:
        journal: Where requests become durable.
        counters: Where every request is counted.
        gate: Which says whether there is memory for it.
        backlog: Which says whether the store keeps up.
    """

    def __init__(
        self, journal: GroupCommit, counters: IngestCounters, gate: MemoryGate, backlog: Backlog
    ) -> None:
        self.counters = counters
        self.gate = gate
        self._journal = journal
        self._backlog = backlog
        self._has_failed = self._has_lacked = False
        self._ended: deque[tuple[asyncio.Future[OSError | None], OSError | None]] = deque()
        self._is_waking = False
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="rootwalk-read")

    def stop(self) -> None:
        """End the thread that reads large requests; safe twice."""
        self._reader.shutdown()

    async def answer(
        self, signal: Signal, transport: str, work: Callable[[Reservation], Awaitable[Outcome]]
    ) -> Outcome:
        """Return what `work` on one request comes to, and count it; never raises for what a sender sent."""
        started_s = time.monotonic()
        try:
            with self.gate.reserve() as held:
                outcome = await work(held)
        except IngestRefusal as refusal:
            outcome = refusal.outcome
        except OSError as error:
            # The system is short of something; it is not the request's fault, so its sender keeps it.
            if not self._has_lacked:
                logger.warning(
                    "cannot read requests now (%s); senders are asked to retry",
                    error.strerror or error,
                )
            self._has_lacked = True
            outcome = Outcome(
                Result.UNAVAILABLE,
                message=f"cannot accept the request now: {(error.strerror or str(error)).lower()}; send again later",
            )
        except Exception:
            # The outermost frame of a request: one that breaks us is answered for good, or its sender would repeat it.
            if not self._has_failed:
                logger.exception("cannot read a request; further ones like it are only counted")
            self._has_failed = True
            outcome = Outcome(
                Result.INTERNAL, message="cannot accept the request: the receiver failed on it"
            )
        self.counters.count_request(signal, transport, outcome.result, time.monotonic() - started_s)
        return outcome

    async def accept(
        self,
        signal: Signal,
        raw: bytes | bytearray,
        held: Reservation,
        *,
        encoding: str = "identity",
        is_json: bool = False,
    ) -> Outcome:
        """Make one request durable; `held` is what it has reserved so far.

        Raises:
            IngestRefusal: With the answer, if it is not acknowledged.
        """
        body = await self._decompress(raw, encoding, held)
        await self.reserve(held, needed_bytes(signal, len(body), is_json=is_json))
        if is_json:
            body = await self._in_thread(len(body), _read_json, signal, body)
        if is_cut(signal, len(body)):
            accepted, rejected = await self._accept_pieces(signal, body, held)
        else:
            request = await self._in_thread(len(body), _check, signal, body)
            held.shrink_to(len(request.body) * JOURNAL_EXPANSION + REQUEST_OVERHEAD_BYTES)
            await self._append(signal, request)
            accepted, rejected = request.accepted, request.rejected
        self.counters.count_accepted(signal, accepted)
        if not rejected:
            return Outcome(Result.DURABLE)
        self.counters.count_refused_records(signal, REJECTION_REASONS[signal], rejected)
        return Outcome(Result.DURABLE, rejected, describe_rejected(signal, rejected))

    async def reserve(self, held: Reservation, size_bytes: int) -> None:
        """Reserve so much in all for a request, when there is room.

        Raises:
            IngestRefusal: If there is no room for it, now or ever.
        """
        match await self.gate.wait_for(held, size_bytes):
            case Admission.LATER:
                raise no_room_now()
            case Admission.NEVER:
                raise self._never_fits(size_bytes)
            case Admission.ADMITTED:
                return

    def check_backlog(self) -> None:
        """Check that the store keeps up with what is acknowledged.

        Raises:
            IngestRefusal: If as much waits as may.
        """
        if self._backlog.is_full():
            raise IngestRefusal(
                Result.BACKLOG,
                f"cannot accept the request now: {self._backlog.limit_bytes} bytes of the journal wait to be "
                "stored; send again later",
            )

    def check_size(self, size_bytes: int) -> None:
        """Check the size that a request has or announces against the limits of OTLP and of the receiver's memory.

        Raises:
            IngestRefusal: If it is larger.
        """
        if size_bytes > MAX_REQUEST_BYTES:
            raise _too_large()
        if size_bytes + REQUEST_OVERHEAD_BYTES > self.gate.plan.request_bytes:
            raise self._never_fits(size_bytes)

    def _never_fits(self, size_bytes: int) -> IngestRefusal:
        return IngestRefusal(
            Result.TOO_LARGE,
            f"cannot accept the request: it needs {size_bytes} bytes of memory and the receiver "
            f"is limited to {self.gate.plan.limit_bytes}; needs smaller batches or a larger "
            "--max-memory-bytes",
        )

    async def _decompress(
        self, raw: bytes | bytearray, encoding: str, held: Reservation
    ) -> bytes | bytearray:
        self.check_size(len(raw))
        if encoding in ("identity", ""):
            return raw
        # One at a time, here or in the thread, so that what is not reserved yet is at most a body for each.
        try:
            body = await self._in_thread(
                len(raw) * USUAL_COMPRESSION, decompress, raw, encoding, MAX_REQUEST_BYTES
            )
        except OverflowError:
            raise _too_large() from None
        except ValueError as error:
            raise IngestRefusal(Result.MALFORMED, str(error)) from error
        held.hold(len(raw) + len(body))
        return body

    async def _accept_pieces(
        self, signal: Signal, body: bytes | bytearray, held: Reservation
    ) -> tuple[int, int]:
        """Make a large request durable piece by piece; return the records accepted and rejected."""
        accepted = rejected = 0
        # All are checked before the first is journalled: a request that is not sound changes nothing.
        async for request in self._check_pieces(signal, body, held):
            accepted += request.accepted
            rejected += request.rejected
        async for request in self._check_pieces(signal, body, held):
            await self._append(signal, request)
        return accepted, rejected

    async def _check_pieces(
        self, signal: Signal, body: bytes | bytearray, held: Reservation
    ) -> AsyncIterator[CheckedRequest]:
        pieces = split_request(body)
        while (piece := await self._in_thread(len(body), _next_piece, pieces)) is not None:
            await self.reserve(held, len(body) + needed_bytes(signal, len(piece), is_json=False))
            yield await self._in_thread(len(piece), _check, signal, piece)

    async def _in_thread(
        self,
        size_bytes: int,
        work: Callable[[Unpack[_Arguments]], _T],
        *arguments: *_Arguments,
    ) -> _T:
        if size_bytes < INLINE_BYTES:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._reader, work, *arguments)

    async def _append(self, signal: Signal, request: CheckedRequest) -> None:
        """Return when a request is durable.

        Raises:
            IngestRefusal: If the journal cannot be written.
        """
        if not request.accepted:
            return
        data = encode_record(signal, time.time_ns(), request.body)
        failure = await self._submit(data, request.accepted)
        if failure is not None:
            self.counters.count_failed_records(signal, request.accepted)
            raise IngestRefusal(
                Result.UNAVAILABLE,
                f"cannot write the journal: {(failure.strerror or str(failure)).lower()}; "
                "needs free disk space, send again later",
            )

    async def _submit(self, data: bytes, records: int) -> OSError | None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[OSError | None] = loop.create_future()

        def on_done(failure: OSError | None) -> None:
            # The requests of one fsync end together, and one wake-up of the loop is for all of them.
            self._ended.append((done, failure))
            if self._is_waking:
                return
            self._is_waking = True
            try:
                loop.call_soon_threadsafe(self._resolve)
            except RuntimeError:
                logger.info("a request became durable after the server had stopped")

        self._journal.submit(data, records, on_done)
        return await done

    def _resolve(self) -> None:
        # Before the first look: what is appended from now on wakes the loop again.
        self._is_waking = False
        while self._ended:
            done, failure = self._ended.popleft()
            if not done.done():
                done.set_result(failure)


def _read_json(signal: Signal, body: bytes | bytearray) -> bytes:
    try:
        return read_json_request(signal, body)
    except DecodeError as error:
        raise IngestRefusal(Result.MALFORMED, str(error)) from error


def _check(signal: Signal, body: bytes | bytearray) -> CheckedRequest:
    try:
        return read_request(signal, body)
    except DecodeError as error:
        raise IngestRefusal(Result.MALFORMED, str(error)) from error


def _next_piece(pieces: Iterator[bytes]) -> bytes | None:
    try:
        return next(pieces, None)
    except DecodeError as error:
        raise IngestRefusal(Result.MALFORMED, str(error)) from error


def no_room_now() -> IngestRefusal:
    """Return the refusal of a request for which there is no memory at the moment."""
    return IngestRefusal(
        Result.MEMORY,
        "cannot accept the request now: the receiver's memory is in use; send again later",
    )


def _too_large() -> IngestRefusal:
    return IngestRefusal(
        Result.TOO_LARGE,
        f"cannot accept the request: saw more than {MAX_REQUEST_BYTES} bytes before or after "
        "decompression; needs smaller batches",
    )
