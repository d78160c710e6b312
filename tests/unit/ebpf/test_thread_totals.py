"""Sums by role of threads that come and go."""

from __future__ import annotations

from rootwalk.ebpf.events import EventFlag, ThreadExit, ThreadRecord, ThreadState, ThreadTotals
from rootwalk.ebpf.thread_totals import RoleTotals

S = 1_000_000_000


def totals(running_s: int, switches: int) -> ThreadTotals:
    return ThreadTotals(running_s * S, 2 * S, 0, 0, 0, S, S, 0, 0, switches)


def alive(running_s: int, switches: int, flags: int = EventFlag.LEADER) -> ThreadRecord:
    return ThreadRecord(0, ThreadState.RUNNING, 0, 7, 1, flags, "t", totals(running_s, switches))


def test_the_same_totals_twice_count_once() -> None:
    sums = RoleTotals()
    sums.add(7, alive(3, 5))
    sums.add(7, alive(3, 5))
    sums.add(7, alive(4, 6))
    assert sums.seconds_by_state()["main", "running"] == 4
    assert sums.seconds_by_state()["main", "runnable"] == 2
    assert sums.seconds_by_aggressor()["main", "own"] == 1


def test_a_thread_that_ends_keeps_its_share_and_its_successor_adds() -> None:
    sums = RoleTotals()
    sums.add(8, alive(3, 5, flags=0))
    sums.add(8, ThreadExit(0, 8, 7, 1, 0, "t", totals(5, 9)))
    sums.add(8, alive(1, 1, flags=0))
    assert sums.seconds_by_state()["other", "running"] == 6
