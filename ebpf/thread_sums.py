"""From threads' totals, told now and then, to what they did in between.

    told      sum |----- event -----|      sum           sum
    interval  ---)                  [------)[------------)

The kernel tells long intervals by themselves and all others in its totals; before a long one it tells the totals up to
it. So the difference of two totals, without the intervals that were told by themselves, ends at the later one and lasts
as long as it is. What is lost on the way is in the next difference. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

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

NOTHING = ThreadTotals(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class ThreadSums:
    """What was told of every thread so far."""

    def __init__(self) -> None:
        self._told: dict[int, ThreadTotals] = {}

    def resolve(
        self, records: Iterable[SchedEvent | ThreadExit | ThreadSum]
    ) -> list[SchedEvent | ThreadExit | SampledInterval]:
        """Return the records with every sum as the interval that it ends."""
        found: list[SchedEvent | ThreadExit | SampledInterval] = []
        told = self._told
        for record in records:
            if isinstance(record, ThreadSum):
                found.append(self._interval(record))
                continue
            if isinstance(record, ThreadExit):
                told.pop(record.tid, None)
            elif record.tid in told:
                told[record.tid] = _add(told[record.tid], record)
            found.append(record)
        return found

    def forget(self) -> None:
        """Begin anew: what comes next is told of threads that were not followed in between."""
        self._told.clear()

    def _interval(self, summed: ThreadSum) -> SampledInterval:
        now = summed.totals
        before = self._told.get(summed.tid, NOTHING)
        if now.switches < before.switches:  # another thread has the number now
            before = NOTHING
        self._told[summed.tid] = now
        blocked_ns = (
            now.blocked_ns
            - before.blocked_ns
            + now.blocked_io_ns
            - before.blocked_io_ns
            + now.stopped_ns
            - before.stopped_ns
        )
        runnable_ns = now.runnable_ns - before.runnable_ns
        running_ns = now.running_ns - before.running_ns
        return SampledInterval(
            summed.end_ns - running_ns - runnable_ns - blocked_ns,
            summed.end_ns,
            summed.tid,
            summed.tgid,
            summed.slot,
            summed.flags,
            summed.name,
            runnable_ns,
            blocked_ns,
            now.foreign_ns - before.foreign_ns + now.kernel_ns - before.kernel_ns,
            now.own_ns - before.own_ns,
            now.idle_ns - before.idle_ns,
        )


def _add(totals: ThreadTotals, event: SchedEvent) -> ThreadTotals:
    """Return the totals with an interval that was told by itself."""
    duration_ns = event.end_ns - event.start_ns
    if event.state == ThreadState.BLOCKED:
        return totals._replace(blocked_ns=totals.blocked_ns + duration_ns)
    if event.state == ThreadState.BLOCKED_IO:
        return totals._replace(blocked_io_ns=totals.blocked_io_ns + duration_ns)
    if event.state == ThreadState.STOPPED:
        return totals._replace(stopped_ns=totals.stopped_ns + duration_ns)
    ran = event.runner_ns
    return totals._replace(
        runnable_ns=totals.runnable_ns + duration_ns,
        foreign_ns=totals.foreign_ns + ran[RunnerKind.FOREIGN],
        own_ns=totals.own_ns + ran[RunnerKind.OWN],
        kernel_ns=totals.kernel_ns + ran[RunnerKind.KERNEL],
        idle_ns=totals.idle_ns + ran[RunnerKind.IDLE],
    )
