"""When a rank's children ran.

ms            0    10   20   30   40   50
child 71           |====|bbbb|====|rrrr|===      first seen at 10; b: blocked, r: runnable, =: ran
"""

from __future__ import annotations

import pytest

from rootwalk.ebpf.events import (
    EventFlag,
    SchedEvent,
    ThreadExit,
    ThreadRecord,
    ThreadState,
    ThreadTotals,
)
from rootwalk.ebpf.partition import RankPartition
from rootwalk.ebpf.workers import MAX_REMEMBERED, WorkerHistory

MS = 1_000_000
CHILD = EventFlag.INHERITED | EventFlag.LEADER


def event(
    start_ms: float,
    end_ms: float,
    state: ThreadState = ThreadState.BLOCKED,
    *,
    tid: int = 71,
    flags: int = CHILD,
) -> SchedEvent:
    bounds = (round(start_ms * MS), round(end_ms * MS))
    return SchedEvent(*bounds, tid, tid, 1, 0, state, flags, "worker", (0, 0, 0, 0), ())


def totals(age_ms: float) -> ThreadTotals:
    """Return totals of a thread that was seen for so long; which state it spent it in does not matter here."""
    return ThreadTotals(round(age_ms * MS), 0, 0, 0, 0, 0, 0, 0, 0, 5)


def now_is(
    since_ms: float, state: ThreadState = ThreadState.RUNNING, *, first_ms: float = 0.0
) -> ThreadRecord:
    age = totals(since_ms - first_ms)
    return ThreadRecord(round(since_ms * MS), state, 0, 71, 1, CHILD, "worker", age)


def ended(end_ms: float, first_ms: float, tid: int = 71) -> ThreadExit:
    return ThreadExit(round(end_ms * MS), tid, tid, 1, CHILD, "worker", totals(end_ms - first_ms))


@pytest.fixture
def history() -> WorkerHistory:
    made = WorkerHistory(0)
    made.look(50 * MS, {71: now_is(45, first_ms=10)})
    made.add(event(20, 30))
    made.add(event(40, 45, ThreadState.RUNNABLE))
    return made


def ran_ms(history: WorkerHistory, start_ms: float, end_ms: float) -> float | None:
    times = history.times(round(start_ms * MS), round(end_ms * MS), [])
    return None if times is None else times[0] / MS


def test_ran_where_nothing_was_in_its_way(history: WorkerHistory) -> None:
    assert ran_ms(history, 0, 50) == 25  # 10..20, 30..40, 45..50
    assert ran_ms(history, 15, 35) == 10
    assert ran_ms(history, 20, 30) == 0
    assert ran_ms(history, 0, 10) == 0  # it did not exist


def test_only_waits_of_the_main_thread_while_a_child_ran_count(history: WorkerHistory) -> None:
    # the main thread waits 5..25 and 42..48: the child ran in 10..20 and 45..48 of it
    times = history.times(0, 50 * MS, [(5 * MS, 25 * MS), (42 * MS, 48 * MS)])
    assert times == (25 * MS, 13 * MS, 0)


def test_two_children_add_up_in_time_but_not_in_overlap() -> None:
    history = WorkerHistory(0)
    history.look(40 * MS, {71: now_is(0), 72: now_is(20, first_ms=0)})
    history.add(event(0, 20, tid=72))
    # 71 ran 0..40, 72 ran 20..40; the main thread waited 10..30
    assert history.times(0, 40 * MS, [(10 * MS, 30 * MS)]) == (60 * MS, 20 * MS, 0)


def test_child_that_is_blocked_now_does_not_run() -> None:
    # No event comes before a wait has ended: 71 waits since 12 and is looked at at 50.
    history = WorkerHistory(0)
    history.look(50 * MS, {71: now_is(12, ThreadState.BLOCKED)})
    assert ran_ms(history, 0, 50) == 12


def test_wait_that_ends_after_the_look_is_counted_once() -> None:
    history = WorkerHistory(0)
    history.look(50 * MS, {71: now_is(12, ThreadState.BLOCKED)})
    history.add(event(5, 12, ThreadState.RUNNABLE))  # before: the wait since 12 is still open
    assert ran_ms(history, 0, 50) == 5
    history.add(event(12, 51))
    assert ran_ms(history, 0, 50) == 5
    history.look(60 * MS, {71: now_is(51, first_ms=0)})
    assert ran_ms(history, 0, 60) == 14


def test_nothing_is_known_after_the_last_look_or_before_the_first() -> None:
    history = WorkerHistory(10 * MS)
    history.look(50 * MS, {})
    assert ran_ms(history, 10, 50) == 0
    assert ran_ms(history, 40, 51) is None
    assert ran_ms(history, 9, 20) is None


def test_lost_events_make_their_time_unknown(history: WorkerHistory) -> None:
    history.mark_unknown(20 * MS, 25 * MS)
    assert ran_ms(history, 15, 35) is None
    assert ran_ms(history, 25, 35) == 5


def test_child_that_lived_between_two_looks_counts() -> None:
    history = WorkerHistory(0)
    history.look(5 * MS, {})
    history.add(event(12, 15))
    history.end_thread(ended(20, first_ms=10))
    history.look(50 * MS, {})
    assert ran_ms(history, 0, 50) == 7  # 10..12 and 15..20


def test_child_that_has_died_does_not_run() -> None:
    history = WorkerHistory(0)
    history.look(10 * MS, {71: now_is(0)})
    history.look(50 * MS, {})
    history.end_thread(ended(30, first_ms=0))
    assert ran_ms(history, 0, 50) == 30


def test_another_thread_with_its_number_is_another_thread() -> None:
    history = WorkerHistory(0)
    history.look(10 * MS, {71: now_is(0)})
    history.end_thread(ended(20, first_ms=0))
    history.look(50 * MS, {71: now_is(40, first_ms=40)})
    assert ran_ms(history, 30, 50) == 10


def test_child_that_runs_when_it_is_found_is_unknown_until_it_is_switched_in() -> None:
    history = WorkerHistory(0)
    history.adopt(20 * MS, {71: False, 72: True})
    history.look(50 * MS, {})
    assert ran_ms(history, 10, 15) is None  # before it was found
    assert ran_ms(history, 20, 50) is None  # 71 may run
    history.look(60 * MS, {71: now_is(55, first_ms=55)})
    assert ran_ms(history, 40, 60) is None
    assert ran_ms(history, 55, 60) == 5  # and 72 sleeps
    assert history.adopted == []


def test_adopted_child_that_ends_unseen_is_settled() -> None:
    history = WorkerHistory(0)
    history.adopt(20 * MS, {71: False})
    history.forget_adopted(71, 40 * MS)
    history.look(50 * MS, {})
    assert ran_ms(history, 30, 45) is None
    assert ran_ms(history, 40, 50) == 0


def test_history_is_bounded_and_says_so() -> None:
    history = WorkerHistory(0, max_pieces=4)
    history.look(100 * MS, {71: now_is(95, first_ms=0)})
    for index in range(5):
        history.add(event(10 * index, 10 * index + 5))
    assert history.dropped > 0
    assert ran_ms(history, 0, 100) is None
    assert ran_ms(history, 30, 50) == 10  # 35..40 and 45..50


def test_children_that_come_and_go_are_bounded_where_no_step_closes() -> None:
    history = WorkerHistory(0)
    for number in range(MAX_REMEMBERED + 1):
        history.end_thread(ended(2 * number + 1, first_ms=2 * number, tid=number + 1))
    now_ms = 2 * MAX_REMEMBERED + 1
    history.look(now_ms * MS, {})
    assert ran_ms(history, 0, now_ms) is None
    assert (
        ran_ms(history, now_ms - 4, now_ms) == 2
    )  # ran 1 ms, then another one after a pause of 1 ms


def test_what_is_forgotten_is_unknown_and_the_rest_stays(history: WorkerHistory) -> None:
    history.forget_before(35 * MS)
    assert ran_ms(history, 30, 50) is None
    assert ran_ms(history, 35, 50) == 10


def test_partition_tells_both_for_the_main_thread_only() -> None:
    # main thread blocked 10..40; the child ran 0..20 and 30..50
    partition = RankPartition("core", 0)
    partition.add(event(10, 40, tid=70, flags=EventFlag.LEADER))
    assert partition.workers is not None
    partition.workers.look(50 * MS, {71: now_is(30, first_ms=0)})
    partition.add(event(20, 30))
    times = partition.main_times(0, 50 * MS)
    assert times is not None
    assert (times.loader_running_ns, times.blocked_loader_running_ns) == (40 * MS, 20 * MS)
    (other,) = partition.others_times([(0, 50 * MS)])
    assert other is not None
    assert (other.loader_running_ns, other.blocked_loader_running_ns) == (None, None)


def test_sampled_threads_tell_nothing_of_children() -> None:
    partition = RankPartition("proc", 0)
    times = partition.main_times(0, 10 * MS)
    assert times is not None
    assert times.loader_running_ns is None
    assert times.blocked_loader_running_ns is None
