"""Interval arithmetic of thread times.

ms   0    10   20   30   40
     |----|bbbb|----|rrrr|      b: blocked 10..20, r: runnable 30..40 (8 foreign, 1 own, 1 idle)
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.ebpf.events import EventFlag, SampledInterval, SchedEvent, ThreadState
from rootwalk.ebpf.partition import RankPartition
from rootwalk.ebpf.reader import Cause, Spell
from rootwalk.instrumentation.semconv import TrainingWaitKind

MS = 1_000_000


def event(
    start_ms: int,
    end_ms: int,
    state: ThreadState,
    *,
    tid: int = 7,
    flags: int = EventFlag.LEADER,
    sums_ms: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> SchedEvent:
    foreign, own, kernel, idle = (part * MS for part in sums_ms)
    sums = (foreign, own, kernel, idle)
    return SchedEvent(start_ms * MS, end_ms * MS, tid, 7, 1, 0, state, flags, "t", sums, ())


@pytest.fixture
def partition() -> RankPartition:
    made = RankPartition("core", 0)
    made.add(event(10, 20, ThreadState.BLOCKED))
    made.add(event(30, 40, ThreadState.RUNNABLE, sums_ms=(8, 1, 0, 1)))
    return made


def test_whole_interval(partition: RankPartition) -> None:
    times = partition.main_times(0, 40 * MS)
    assert times is not None
    assert (times.running_ns, times.runnable_ns, times.blocked_ns) == (20 * MS, 10 * MS, 10 * MS)
    assert (times.runnable_foreign_ns, times.runnable_own_ns) == (8 * MS, 1 * MS)
    assert times.runnable_idle_ns == 1 * MS


def test_parts_of_pieces_are_shared_out_evenly(partition: RankPartition) -> None:
    times = partition.main_times(15 * MS, 35 * MS)
    assert times is not None
    assert (times.running_ns, times.runnable_ns, times.blocked_ns) == (10 * MS, 5 * MS, 5 * MS)
    assert times.runnable_foreign_ns == 4 * MS


def test_neighbouring_intervals_do_not_count_a_piece_twice(partition: RankPartition) -> None:
    halves = [partition.main_times(a * MS, b * MS) for a, b in ((0, 12), (12, 33), (33, 50))]
    assert sum(half.blocked_ns or 0 for half in halves if half) == 10 * MS
    assert sum(half.runnable_ns for half in halves if half) == 10 * MS


def test_time_in_which_events_were_lost_is_unknown_and_not_running(
    partition: RankPartition,
) -> None:
    partition.mark_unknown(20 * MS, 25 * MS)
    assert partition.main_times(10 * MS, 40 * MS) is None
    assert partition.main_times(0, 20 * MS) is not None
    assert partition.main_times(25 * MS, 40 * MS) is not None


def test_time_before_the_thread_was_followed_is_unknown() -> None:
    assert RankPartition("core", 5 * MS).main_times(4 * MS, 6 * MS) is None


def test_kernel_threads_are_foreign() -> None:
    partition = RankPartition("core", 0)
    partition.add(event(0, 10, ThreadState.RUNNABLE, sums_ms=(6, 0, 4, 0)))
    times = partition.main_times(0, 10 * MS)
    assert times is not None
    assert times.runnable_foreign_ns == 10 * MS


def test_other_threads_are_a_union() -> None:
    # thread 8:  0 ======== 20            both foreign; together 30 ms of 40, though their waits sum up to 40
    # thread 9:       10 ======== 30
    partition = RankPartition("core", 0)
    partition.add(event(0, 20, ThreadState.RUNNABLE, tid=8, flags=0, sums_ms=(20, 0, 0, 0)))
    partition.add(event(10, 30, ThreadState.RUNNABLE, tid=9, flags=0, sums_ms=(20, 0, 0, 0)))
    (times,) = partition.others_times([(0, 40 * MS)])
    assert times is not None
    assert (times.runnable_ns, times.runnable_foreign_ns) == (30 * MS, 30 * MS)
    assert times.running_ns is None
    assert times.blocked_ns is None


def test_children_are_not_part_of_the_rank() -> None:
    partition = RankPartition("core", 0)
    partition.add(event(0, 10, ThreadState.BLOCKED, flags=EventFlag.LEADER | EventFlag.INHERITED))
    times = partition.main_times(0, 10 * MS)
    assert times is not None
    assert times.blocked_ns == 0


def test_sampled_interval_has_no_parts() -> None:
    # 50 ms of which 30 runnable and 10 blocked, asked for its first half: 15 and 5
    partition = RankPartition("proc", 0)
    flags = EventFlag.LEADER
    partition.add(SampledInterval(0, 50 * MS, 7, 7, 1, flags, "t", 30 * MS, 10 * MS))
    times = partition.main_times(0, 25 * MS)
    assert times is not None
    assert (times.running_ns, times.runnable_ns, times.blocked_ns) == (5 * MS, 15 * MS, 5 * MS)
    assert times.runnable_foreign_ns is None


def test_history_is_bounded_and_says_so() -> None:
    partition = RankPartition("core", 0, max_pieces=4)
    for index in range(5):
        partition.add(event(10 * index, 10 * index + 1, ThreadState.BLOCKED))
    assert partition.dropped == 2
    assert partition.main_times(0, 50 * MS) is None
    assert partition.main_times(20 * MS, 50 * MS) is not None


def test_forgotten_past_is_unknown(partition: RankPartition) -> None:
    partition.forget_before(25 * MS)
    assert partition.main_times(15 * MS, 40 * MS) is None
    assert partition.main_times(25 * MS, 40 * MS) is not None
    assert partition.dropped == 0


intervals = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()), max_size=20)


@given(intervals, st.integers(0, 200), st.integers(0, 200))
def test_states_add_up_to_any_interval(gaps: list[tuple[int, int, bool]], a: int, b: int) -> None:
    partition, now = RankPartition("core", 0), 0
    for gap, length, is_runnable in gaps:
        state = ThreadState.RUNNABLE if is_runnable else ThreadState.BLOCKED
        partition.add(event(now + gap, now + gap + length, state))
        now += gap + length
    start, end = min(a, b) * MS, max(a, b) * MS
    times = partition.main_times(start, end)
    assert times is not None
    assert times.running_ns is not None
    assert times.blocked_ns is not None
    assert times.running_ns >= 0
    assert times.running_ns + times.runnable_ns + times.blocked_ns == end - start


def test_what_a_thread_lost_while_it_ran_is_spread_over_its_spell(partition: RankPartition) -> None:
    partition.add_spell(Spell(0, 10 * MS, 4 * MS, Cause.INTERRUPT, 1))
    partition.add_spell(Spell(50 * MS, 60 * MS, 1 * MS, Cause.INTERRUPT, 1))
    times = partition.main_times(5 * MS, 55 * MS)
    assert times is not None
    assert times.waits == {"interrupt": 2_500_000}
    assert times.running_ns == 30 * MS  # the states tell nothing of it


def test_reclaim_that_blocks_is_told_in_two_parts_and_not_as_the_read_in_which_it_was() -> None:
    partition = RankPartition("core", 0, kind_of=lambda _: TrainingWaitKind.FILE_READ)
    partition.add(event(10, 30, ThreadState.BLOCKED))
    partition.add_spell(Spell(5 * MS, 25 * MS, 20 * MS, Cause.RECLAIM, 1))
    times = partition.main_times(0, 40 * MS)
    assert times is not None
    assert times.waits == {
        "memory_reclaim": 5 * MS,
        "memory_reclaim_wait": 15 * MS,
        "file_read": 5 * MS,
    }


def test_other_threads_that_are_not_told_of_have_no_time(partition: RankPartition) -> None:
    partition.tells_others = False
    assert partition.others_times([(0, 40 * MS)]) == [None]
    assert partition.main_times(0, 40 * MS) is not None


def test_waits_are_told_of_an_interval_when_they_are_of_all_of_it(partition: RankPartition) -> None:
    partition.tell_waits(100, 10 * MS)
    partition.tell_waits(None, 20 * MS)
    partition.tell_waits(None, 25 * MS)
    partition.tell_waits(7, 30 * MS)
    partition.tell_waits(100, 35 * MS)

    def told(start_ms: int, end_ms: int) -> int | None:
        times = partition.main_times(start_ms * MS, end_ms * MS)
        assert times is not None
        return times.told_wait_ns

    assert told(0, 10) is None  # nobody has said anything yet
    assert told(5, 15) is None
    assert told(10, 20) == 100
    assert told(10, 21) is None
    assert told(20, 30) is None
    assert told(30, 40) == 100
    assert told(30, 35) == 7
    partition.forget_before(32 * MS)
    assert told(32, 40) == 100


def test_other_threads_times_have_no_spells(partition: RankPartition) -> None:
    partition.add_spell(Spell(0, 10 * MS, 4 * MS, Cause.INTERRUPT, 1))
    (times,) = partition.others_times([(0, 40 * MS)])
    assert times is not None
    assert times.waits == {}
