"""Marks in the device's stream at the begin and end of phases: how long the device took for what a phase enqueued.

    host     |- forward -|- backward -|- optimizer -|                the host goes on long before the device
    device        |M------ forward ------M------ backward ------M-- optimizer --M
                                                          ^ a mark is passed when all before it is done

A phase is written when the device has passed its last mark, which is asked and never waited for; what comes after it is
written after it. Nothing is kept back for longer than `MAX_HELD_NS`, nor more than `MAX_HELD` records: then the phase
is written without. All of it runs on the thread that trains, and none of it while that captures a CUDA graph, which a
question of any thread would spoil. Must not know torch: it is given what it needs of `torch.cuda`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

__all__ = ["Mark", "PhaseMarks"]

# Marks that a record may still be between: those of the phase that ends, and the one before it.
RECENT: Final = 3
# Phases of some ten steps; of a device that is further behind, the times are given up.
MAX_HELD: Final = 128
MAX_HELD_NS: Final = 2_000_000_000


class DeviceModule(Protocol):
    """What is used of `torch.cuda`."""

    @property
    def Event(self) -> Callable[..., Any]:  # noqa: N802  (torch's name)
        """Makes an event; takes `enable_timing`."""

    def is_current_stream_capturing(self) -> bool:
        """Return whether the calling thread's stream is being captured."""


class Mark:
    """A place in the device's stream, shared by what ends there and what begins there."""

    __slots__ = ("event", "users")

    def __init__(self, event: Any) -> None:
        self.event = event
        self.users = 1  # the latest marks


class _Held(NamedTuple):
    """A record that is not written yet; without marks it only waits for those before it."""

    since_ns: int
    marks: tuple[Mark, Mark] | None
    write: Callable[..., Any]


class PhaseMarks:
    """Keeps records back until the device has passed their marks.

    Args:
        cuda: `torch.cuda`, which is initialised.
        now: The monotonic clock, ns.
    """

    def __init__(self, cuda: DeviceModule, now: Callable[[], int]) -> None:
        self._cuda = cuda
        self._now = now
        self._held: deque[_Held] = deque()
        self._free: list[Any] = []
        self._recent: deque[Mark] = deque()
        self.is_broken = False

    def mark(self) -> Mark | None:
        """Put a mark where the device's stream is now; None while a graph is captured, and where there is no more."""
        if self.is_broken or len(self._held) >= MAX_HELD:
            return None
        try:
            if self._cuda.is_current_stream_capturing():
                return None
            event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
            event.record()
        except Exception:  # noqa: BLE001  (a device that has failed fails every call: its times are given up)
            self._give_up()
            return None
        mark = Mark(event)
        self._recent.append(mark)
        if len(self._recent) > RECENT:
            self._release(self._recent.popleft())
        return mark

    def write(
        self, marks: tuple[Mark | None, Mark | None] | None, write: Callable[..., Any]
    ) -> None:
        """Write a record, now or as soon as those before it are written and its marks are passed.

        Args:
            marks: Between which its time on the device lies; None for a record without.
            write: Writes it; takes `device_ns`, None where not known.
        """
        begin, end = marks if marks is not None else (None, None)
        pair = None if begin is None or end is None or self.is_broken else (begin, end)
        if pair is None and not self._held:
            write(device_ns=None)
            return
        for mark in pair or ():
            mark.users += 1
        self._held.append(_Held(self._now(), pair, write))
        self.settle()

    def settle(self) -> None:
        """Write what the device has passed, and what has waited for too long."""
        held = self._held
        if not held:
            return
        try:
            if not self.is_broken and self._cuda.is_current_stream_capturing():
                return
        except Exception:  # noqa: BLE001  (as above)
            self._give_up()
        limit_ns = self._now() - MAX_HELD_NS
        while held:
            first = held[0]
            is_late = first.since_ns < limit_ns or len(held) > MAX_HELD
            is_passed, device_ns = self._read(first.marks)
            if not (is_passed or is_late):
                return
            held.popleft()
            self._write(first, device_ns)

    def flush(self) -> None:
        """Write all that is left, without what the device has not passed."""
        self.settle()
        while self._held:
            self._write(self._held.popleft(), None)

    def _write(self, one: _Held, device_ns: int | None) -> None:
        for mark in one.marks or ():
            self._release(mark)
        one.write(device_ns=device_ns)

    def _read(self, marks: tuple[Mark, Mark] | None) -> tuple[bool, int | None]:
        """Return whether the device has passed both marks, and the time between them; None if there is none."""
        if marks is None or self.is_broken:
            return True, None
        begin, end = marks
        try:
            if not end.event.query():
                return False, None
            return True, max(round(begin.event.elapsed_time(end.event) * 1e6), 0)
        except Exception:  # noqa: BLE001  (marks on two devices, or a device that has failed)
            self._give_up()
            return True, None

    def _release(self, mark: Mark) -> None:
        mark.users -= 1
        if mark.users == 0 and not self.is_broken:
            self._free.append(mark.event)

    def _give_up(self) -> None:
        self.is_broken = True
        self._free.clear()
