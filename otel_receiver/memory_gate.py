"""Keeps the receiver's memory within a limit: every request asks here before it is read, decompressed and parsed.

Two accounts. What requests in progress may come to need is reserved before they need it, by a factor for each signal
that was measured; and the resident memory above the idle process is read from the kernel, because the store, the
journal and the allocator hold memory too. A request that does not fit waits a moment for its turn, then it is refused
retryably; one that can never fit is refused for good, so that its sender does not repeat it for ever.

Storing a batch asks here as well. It begins when the requests in progress leave room for it, new ones that would not
fit beside it wait until it is done, and what waits for a batch to end has its turn before the next.

Source:
    Collector, memory_limiter: refuse before decoding, retryably. /proc/self/statm, field 2: resident pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum, auto
from types import TracebackType
from typing import Final, Self

from rootwalk.otel_receiver.memory_plan import MemoryPlan
from rootwalk.otel_receiver.request_split import PIECE_BYTES, is_cut
from rootwalk.otel_receiver.signals import Signal

__all__ = [
    "BODY_GROWTH",
    "EXPANSION_BY_SIGNAL",
    "FIRST_BODY_BYTES",
    "JOURNAL_EXPANSION",
    "JSON_EXPANSION_BY_SIGNAL",
    "REQUEST_OVERHEAD_BYTES",
    "Admission",
    "MemoryGate",
    "Reservation",
    "limit_allocator_arenas",
    "needed_bytes",
    "next_reservation",
    "read_resident_bytes",
]

# Peak of resident memory over the size of a request, while it is read, checked and framed: measured by
# tests/benchmarks/request_memory.py on the smallest records that senders write, which expand most, and rounded up.
EXPANSION_BY_SIGNAL: Final = {
    Signal.TRACES: 10,
    Signal.METRICS: 14,
    Signal.LOGS: 10,
    Signal.PROFILES: 17,
}
# The same for JSON text: its objects, the message made of them, then its protobuf and that parsed again.
JSON_EXPANSION_BY_SIGNAL: Final = {
    Signal.TRACES: 23,
    Signal.METRICS: 34,
    Signal.LOGS: 22,
    Signal.PROFILES: 25,
}
# The first part of a body, for which a sender does not wait: half of the window that each stream has from the start.
FIRST_BODY_BYTES: Final = 32 * 1024
# Memory is reserved for so many times what has come: few steps for large bodies, one for a usual request.
BODY_GROWTH: Final = 8
# What stays of a request that is checked: its bytes, framed, and joined with others for one write.
JOURNAL_EXPANSION: Final = 3
# What a request costs however small it is: its stream, its buffers, its task.
REQUEST_OVERHEAD_BYTES: Final = 16 * 1024
# The kernel is asked at most this often; a read costs 5 us.
SAMPLE_INTERVAL_S: Final = 0.01
# Giving free memory back walks the heap, some ms a time.
TRIM_INTERVAL_S: Final = 0.5
# How long a request waits for room: shorter than any sender's patience, longer than a request usually takes.
WAIT_S: Final = 2.0
_POLL_S: Final = 0.005
# How long a batch waits for requests to give back what they reserved. They do in less, but for slow senders; then it
# goes on without.
STORE_WAIT_S: Final = 3.0
# How long it waits for memory that nobody reserved, such as a body that was larger than it looked compressed.
UNRESERVED_WAIT_S: Final = 0.1
# How long it waits for requests that the last batch kept out.
KEPT_OUT_WAIT_S: Final = 0.2

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_M_ARENA_MAX: Final = -8
_ARENAS: Final = 2


class Admission(Enum):
    """Whether a request may go on."""

    ADMITTED = auto()
    LATER = auto()
    NEVER = auto()


class _Statm:
    """/proc/self/statm, kept open: it must be readable when no descriptor is left."""

    __slots__ = ("_descriptor", "_pid")

    def __init__(self) -> None:
        self._descriptor, self._pid = -1, 0

    def read(self) -> bytes:
        if (
            self._pid != os.getpid()
        ):  # never read, or the file is of the process that forked this one
            self._descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            self._pid = os.getpid()
        return os.pread(self._descriptor, 256, 0)


_STATM: Final = _Statm()


def read_resident_bytes() -> int:
    """Return the resident memory of this process.

    Raises:
        OSError: At the first call, if no descriptor is left.
    """
    return int(_STATM.read().split()[1]) * _PAGE_BYTES


def limit_allocator_arenas() -> None:
    """Keep glibc from a heap for each thread: what one thread freed, another could not use."""
    _call_libc("mallopt", _M_ARENA_MAX, _ARENAS)


def needed_bytes(signal: Signal, size_bytes: int, *, is_json: bool) -> int:
    """Return the memory that a decompressed request of that size needs at its peak."""
    if is_json:
        return size_bytes * JSON_EXPANSION_BY_SIGNAL[signal] + REQUEST_OVERHEAD_BYTES
    expansion = EXPANSION_BY_SIGNAL[signal]
    if is_cut(signal, size_bytes):
        return size_bytes + PIECE_BYTES * expansion + REQUEST_OVERHEAD_BYTES
    return size_bytes * expansion + REQUEST_OVERHEAD_BYTES


def next_reservation(there_bytes: int, size_bytes: int) -> int:
    """Return how much of a body to reserve memory for when so much of it has come.

    A peer that announces a body and does not send it so holds next to nothing.

    Args:
        there_bytes: What has come.
        size_bytes: What is announced.
    """
    return min(size_bytes, max(FIRST_BODY_BYTES, there_bytes * BODY_GROWTH))


class MemoryGate:
    """Admits requests, on one event loop, and batches for the store, on one other thread, while their memory fits.

    Args:
        plan: The shares of the limit.
        read_resident: Resident memory of the process; another one in tests.
        clock: Monotonic seconds; another one in tests.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        read_resident: Callable[[], int] = read_resident_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self._read_resident = read_resident
        self._clock = clock
        self._idle_bytes = read_resident()
        self._above_idle_bytes = 0
        self._reserved_bytes = 0
        self._sampled_s = -SAMPLE_INTERVAL_S
        self._trimmed_s = -TRIM_INTERVAL_S
        self._turn = asyncio.Lock()
        self._guard = threading.Lock()
        self._is_store_waiting = False
        self._is_storing = False
        self._kept_out = 0

    @property
    def reserved_bytes(self) -> int:
        """What requests in progress may need."""
        return self._reserved_bytes

    def measure_idle(self) -> None:
        """Say that nothing is in progress and everything is loaded: memory is counted from here."""
        self._idle_bytes = self._read_resident()

    def above_idle_bytes(self) -> int:
        """Return the resident memory above the idle process, not older than the sample interval."""
        now_s = self._clock()
        if now_s - self._sampled_s >= SAMPLE_INTERVAL_S:
            self._sampled_s = now_s
            self._above_idle_bytes = max(0, self._read_resident() - self._idle_bytes)
        return self._above_idle_bytes

    def reserve(self) -> Reservation:
        """Return an empty reservation, to be used as a context manager."""
        return Reservation(self)

    @contextlib.contextmanager
    def storing(self) -> Iterator[None]:
        """Hold what a batch for the store takes, once there is room; for the one thread that stores."""
        self._await(lambda: not self._kept_out, KEPT_OUT_WAIT_S)
        self._is_store_waiting = True
        try:
            self._await(self._leaves_room, STORE_WAIT_S)
            self._await(self._is_room_free, UNRESERVED_WAIT_S)
            self._is_storing = True
            yield
        finally:
            self._is_store_waiting = self._is_storing = False

    async def wait_for(self, held: Reservation, size_bytes: int) -> Admission:
        """Let a reservation grow, first come first served; LATER when its turn did not come in time.

        Who holds something already goes first: nobody else's end may depend on it.
        """
        admission = Admission.LATER
        is_new = held.is_empty()
        if not (is_new and self._turn.locked()):
            admission = held.grow_to(size_bytes)
        if admission is not Admission.LATER:
            return admission
        is_kept_out = size_bytes > self.plan.beside_bytes
        self._kept_out += is_kept_out
        try:
            with contextlib.suppress(TimeoutError):
                async with (
                    asyncio.timeout(WAIT_S),
                    self._turn if is_new else contextlib.nullcontext(),
                ):
                    while (admission := held.grow_to(size_bytes)) is Admission.LATER:
                        await asyncio.sleep(_POLL_S)
        finally:
            self._kept_out -= is_kept_out
        return admission

    def admit(self, more_bytes: int, held_bytes: int) -> Admission:
        """Reserve more for a request that holds so much already, if it fits."""
        if held_bytes + more_bytes > self.plan.request_bytes:
            return Admission.NEVER
        with self._guard:
            if self._reserved_bytes + more_bytes > self._reservable_bytes(is_new=not held_bytes):
                return Admission.LATER
            self._reserved_bytes += more_bytes
        is_over = self.above_idle_bytes() + more_bytes > self.plan.resident_bytes
        # A large one grows before the next look at the process: what is free is given back first.
        is_large = more_bytes > self.plan.beside_bytes
        if (is_over or is_large) and not self._frees_enough(more_bytes) and is_over:
            self.release(more_bytes)
            return Admission.LATER
        return Admission.ADMITTED

    def take(self, more_bytes: int) -> None:
        """Account for memory that is in use already."""
        with self._guard:
            self._reserved_bytes += more_bytes

    def release(self, held_bytes: int) -> None:
        """Give back what a request had reserved."""
        with self._guard:
            self._reserved_bytes -= held_bytes

    def _reservable_bytes(self, *, is_new: bool) -> int:
        # While a batch waits, requests in progress may still grow: it waits for their end.
        is_shared = self._is_storing or (self._is_store_waiting and is_new)
        return self.plan.beside_bytes if is_shared else self.plan.request_bytes

    def _await(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline_s = self._clock() + timeout_s
        while not condition() and self._clock() < deadline_s:
            time.sleep(_POLL_S)

    def _leaves_room(self) -> bool:
        with self._guard:
            return self._reserved_bytes <= max(self.plan.beside_bytes, 0)

    def _is_room_free(self) -> bool:
        if self._reserved_bytes == 0:
            return True
        room_bytes = self.plan.limit_bytes - self.plan.storing_bytes
        if self._read_resident() - self._idle_bytes <= room_bytes:
            return True
        return self._frees_enough(self.plan.resident_bytes - room_bytes)

    def _frees_enough(self, more_bytes: int) -> bool:
        """Give free memory back to the system, now and then; say whether it made room."""
        now_s = self._clock()
        if now_s - self._trimmed_s < TRIM_INTERVAL_S:
            return False
        self._trimmed_s = now_s
        _call_libc("malloc_trim", 0)
        self._sampled_s = now_s - SAMPLE_INTERVAL_S
        return self.above_idle_bytes() + more_bytes <= self.plan.resident_bytes


class Reservation:
    """Memory that one request has reserved; given back at the end of its block."""

    __slots__ = ("_gate", "_held_bytes")

    def __init__(self, gate: MemoryGate) -> None:
        self._gate = gate
        self._held_bytes = 0

    def is_empty(self) -> bool:
        """Say whether nothing is reserved yet."""
        return self._held_bytes == 0

    def grow_to(self, size_bytes: int) -> Admission:
        """Reserve so much in all; a smaller size than now changes nothing."""
        more_bytes = size_bytes - self._held_bytes
        if more_bytes <= 0:
            return Admission.ADMITTED
        admission = self._gate.admit(more_bytes, self._held_bytes)
        if admission is Admission.ADMITTED:
            self._held_bytes = size_bytes
        return admission

    def hold(self, size_bytes: int) -> None:
        """Account for what is in memory already, whether there is room for it or not."""
        if size_bytes > self._held_bytes:
            self._gate.take(size_bytes - self._held_bytes)
            self._held_bytes = size_bytes

    def shrink_to(self, size_bytes: int) -> None:
        """Give back what is above so much; a larger size than now changes nothing."""
        if size_bytes < self._held_bytes:
            self._gate.release(self._held_bytes - size_bytes)
            self._held_bytes = size_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._gate.release(self._held_bytes)
        self._held_bytes = 0


def _call_libc(name: str, *arguments: int) -> None:
    """Call a function of glibc; another C library, which lacks it, keeps its own habits."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
