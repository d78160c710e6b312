"""From threads' totals, told now and then, to what they did in between.

    told      sum |---run---|----- event -----|---run---|         sum         sum
    interval                                  [-------------------)[----------)

The kernel tells long waits by themselves and all others in its totals, which it tells before a long one if they hold
anything new. So the difference of two totals, without the waits that were told by themselves, ends with the later one
and begins where the last thing that was told ended. What is lost on the way is in the next difference. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rootwalk.ebpf.events import (
    RunnerKind,
    SampledInterval,
    SchedEvent,
    ThreadExit,
    ThreadState,
    ThreadSum,
    ThreadTotals,
)

__all__ = ["ThreadSums"]


class _Told(NamedTuple):
    """What was told of one thread, ns: waits by kind, the CPU's users meanwhile, up to when."""

    until_ns: int
    runnable_ns: int
    blocked_ns: int
    foreign_ns: int
    own_ns: int
    idle_ns: int
    is_whole: bool  # nothing that its totals hold is missing here


class ThreadSums:
    """What was told of every thread so far."""

    def __init__(self) -> None:
        self._told: dict[int, _Told] = {}
        self._since_ns = 0

    def resolve(
        self, records: Iterable[SchedEvent | ThreadExit | ThreadSum]
    ) -> list[SchedEvent | ThreadExit | SampledInterval]:
        """Return the records with every sum as the interval that it ends."""
        found: list[SchedEvent | ThreadExit | SampledInterval] = []
        for record in records:
            if isinstance(record, ThreadSum):
                interval = self._interval(record)
                if interval is not None:
                    found.append(interval)
                continue
            if isinstance(record, ThreadExit):
                self._told.pop(record.tid, None)
            else:
                self._told[record.tid] = _add(self._told.get(record.tid), record)
            found.append(record)
        return found

    def begin(self, now_ns: int) -> None:
        """Begin anew: what older threads did up to now was told in another way, or not at all."""
        self._told.clear()
        self._since_ns = now_ns

    def _interval(self, summed: ThreadSum) -> SampledInterval | None:
        """Return what a sum adds; None for the first of a thread that is older than what we know."""
        totals, before = summed.totals, self._told.get(summed.tid)
        now = _told_by(totals, summed.end_ns)
        self._told[summed.tid] = now
        if before is None or not before.is_whole:
            born_ns = summed.end_ns - sum(totals[:5])
            if born_ns < self._since_ns:
                return None
            before = before or _Told(born_ns, 0, 0, 0, 0, 0, is_whole=True)
        runnable_ns = now.runnable_ns - before.runnable_ns
        blocked_ns = now.blocked_ns - before.blocked_ns
        if runnable_ns < 0 or blocked_ns < 0 or summed.end_ns <= before.until_ns:
            return None  # another thread has the number now
        return SampledInterval(
            min(before.until_ns, summed.end_ns - runnable_ns - blocked_ns),
            summed.end_ns,
            summed.tid,
            summed.tgid,
            summed.slot,
            summed.flags,
            summed.name,
            runnable_ns,
            blocked_ns,
            now.foreign_ns - before.foreign_ns,
            now.own_ns - before.own_ns,
            now.idle_ns - before.idle_ns,
        )


def _told_by(totals: ThreadTotals, end_ns: int) -> _Told:
    return _Told(
        end_ns,
        totals.runnable_ns,
        totals.blocked_ns + totals.blocked_io_ns + totals.stopped_ns,
        totals.foreign_ns + totals.kernel_ns,
        totals.own_ns,
        totals.idle_ns,
        is_whole=True,
    )


def _add(told: _Told | None, event: SchedEvent) -> _Told:
    """Return what is told with one more wait."""
    _, runnable_ns, blocked_ns, foreign_ns, own_ns, idle_ns, is_whole = told or _NOTHING
    duration_ns = event.end_ns - event.start_ns
    if event.state == ThreadState.RUNNABLE:
        ran = event.runner_ns
        runnable_ns += duration_ns
        foreign_ns += ran[RunnerKind.FOREIGN] + ran[RunnerKind.KERNEL]
        own_ns += ran[RunnerKind.OWN]
        idle_ns += ran[RunnerKind.IDLE]
    else:
        blocked_ns += duration_ns
    return _Told(event.end_ns, runnable_ns, blocked_ns, foreign_ns, own_ns, idle_ns, is_whole)


_NOTHING = _Told(0, 0, 0, 0, 0, 0, is_whole=False)
