"""What happens to one request, whatever it came by: checked, made durable, counted, answered.

Transports translate an `Outcome` into their status codes and know nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.counters import IngestCounters
from rootwalk.otel_receiver.decode import read_request, render_partial_success
from rootwalk.otel_receiver.group_commit import GroupCommit
from rootwalk.otel_receiver.journal import encode_record
from rootwalk.otel_receiver.signals import Signal

__all__ = ["MAX_REQUEST_BYTES", "Ingest", "Outcome", "Result"]

logger = logging.getLogger(__name__)

# OTLP 1.11 recommends this limit, before and after decompression.
MAX_REQUEST_BYTES: Final = 64 * 1024 * 1024
# What a sender is told to wait when the journal cannot be written.
RETRY_AFTER_S: Final = 1


class Result(StrEnum):
    """How a request ended; the value is the reason in counters."""

    DURABLE = "durable"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to one request.

    Attributes:
        result: How it ended.
        body: The export response when it is durable, else empty.
        message: What was wrong, else empty.
    """

    result: Result
    body: bytes = b""
    message: str = ""


class Ingest:
    """Takes decompressed request bodies and answers when they are durable."""

    def __init__(self, journal: GroupCommit, counters: IngestCounters) -> None:
        self._journal = journal
        self._counters = counters

    async def accept(self, signal: Signal, body: bytes) -> Outcome:
        """Return the answer to one export request; never raises for what a sender sent."""
        if len(body) > MAX_REQUEST_BYTES:
            return self.refuse_size(signal)
        try:
            request = read_request(signal, body)
        except DecodeError as error:
            self._counters.count_refused(signal, Result.MALFORMED)
            return Outcome(Result.MALFORMED, message=str(error))
        if request.accepted:
            data = encode_record(signal, time.time_ns(), request.body)
            failure = await self._append(data, request.accepted)
            if failure is not None:
                self._counters.count_failed(signal, Result.UNAVAILABLE)
                return Outcome(
                    Result.UNAVAILABLE,
                    message=f"cannot write the journal: {(failure.strerror or str(failure)).lower()}; "
                    "needs free disk space, send again later",
                )
        self._counters.count_accepted(signal, request.accepted)
        if request.rejected:
            self._counters.count_refused(signal, "bad_id", request.rejected)
        answer = render_partial_success(signal, request.rejected, request.message)
        return Outcome(Result.DURABLE, body=answer)

    def refuse_size(self, signal: Signal) -> Outcome:
        """Return the answer to a request over the limit, and count it."""
        self._counters.count_refused(signal, Result.TOO_LARGE)
        return Outcome(
            Result.TOO_LARGE,
            message=f"cannot accept the request: saw more than {MAX_REQUEST_BYTES} bytes after "
            "decompression; needs smaller batches",
        )

    def refuse_malformed(self, signal: Signal, message: str) -> Outcome:
        """Return the answer to a request whose body cannot be read at all, and count it."""
        self._counters.count_refused(signal, Result.MALFORMED)
        return Outcome(Result.MALFORMED, message=message)

    async def _append(self, data: bytes, records: int) -> OSError | None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[OSError | None] = loop.create_future()

        def resolve(failure: OSError | None) -> None:
            if not done.done():
                done.set_result(failure)

        def on_done(failure: OSError | None) -> None:
            try:
                loop.call_soon_threadsafe(resolve, failure)
            except RuntimeError:
                logger.info("a request became durable after the server had stopped")

        self._journal.submit(data, records, on_done)
        return await done
