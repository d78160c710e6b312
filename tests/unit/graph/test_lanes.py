"""Waits of the main thread, and ends of collectives that were noted late."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.graph.columns import ThreadState
from rootwalk.graph.lanes import (
    CollectiveCall,
    RankRows,
    Region,
    correct_late_notes,
    cut_region,
    find_waits,
)


def rows(calls: list[tuple[float, float]], blocked: list[tuple[float, float]]) -> RankRows:
    made = [CollectiveCall(row, start, end) for row, (start, end) in enumerate(calls)]
    return RankRows({}, {}, made, [call.start_s for call in made], blocked, [b[0] for b in blocked])


def ends(made: RankRows) -> list[float]:
    correct_late_notes(made, made.blocked)
    return [call.end_s for call in made.calls]


def test_note_that_comes_after_the_wait_it_ended_is_moved_back() -> None:
    # blocked 0.010..0.100; the only collective under way was noted at 0.104
    assert ends(rows([(0.005, 0.104)], [(0.010, 0.100)])) == [0.100]


def test_wait_that_a_collective_ended_in_time_moves_nothing() -> None:
    # the first collective released the thread; the second is simply still under way
    calls = [(0.005, 0.0995), (0.008, 0.104)]
    assert ends(rows(calls, [(0.010, 0.100)])) == [0.0995, 0.104]


def test_collective_that_ends_much_later_did_not_end_the_wait() -> None:
    # blocked on something else while a collective was under way
    assert ends(rows([(0.005, 0.150)], [(0.010, 0.100)])) == [0.150]


def test_collective_issued_after_the_wait_began_is_not_what_was_waited_for() -> None:
    assert ends(rows([(0.050, 0.104)], [(0.010, 0.100)])) == [0.104]


def test_of_two_the_one_that_was_noted_first_ended_the_wait() -> None:
    calls = [(0.005, 0.103), (0.008, 0.107)]
    assert ends(rows(calls, [(0.010, 0.100)])) == pytest.approx([0.100, 0.107])


def region(
    calls: list[tuple[float, float]], blocked: list[tuple[float, float]], blocked_s: float
) -> Region:
    """A watched region from 0 to 0.1 s; states are running and blocked."""
    states = np.zeros(len(ThreadState))
    states[ThreadState.BLOCKED] = blocked_s
    made = tuple(CollectiveCall(row, start, end) for row, (start, end) in enumerate(calls))
    pending = tuple(call for call in made if call.end_s > 0.0)
    issued = tuple(call for call in made if call.start_s >= 0.0)
    return Region("forward", 0, 0.0, 0.1, states, issued, pending, tuple(blocked), is_watched=True)


def test_collective_issued_as_a_wait_ends_is_not_what_was_waited_for() -> None:
    # 0.01..0.05 blocked for the first; the second is called at 0.05 and over at 0.0505
    (wait,) = find_waits(region([(0.01, 0.05), (0.05, 0.0505)], [(0.01, 0.05)], 0.04))
    assert (wait.waited_row, wait.start_s, wait.end_s) == (0, 0.01, 0.05)


def test_wait_begins_when_another_thread_calls_what_it_is_for() -> None:
    # blocked 0.01..0.08, while another thread calls the collective at 0.03
    made = region([(0.03, 0.08)], [(0.01, 0.08)], 0.07)
    (wait,) = find_waits(made)
    assert (wait.waited_row, wait.start_s, wait.end_s) == (0, 0.03, 0.08)
    pieces = [(p.start_s, p.end_s, p.issued_row, p.waited_row) for p in cut_region(made)]
    # The call comes before the wait for it, else each would wait for the other.
    assert pieces == [
        (0.0, 0.03, None, None),
        (0.03, 0.03, 0, None),
        (0.03, 0.08, None, 0),
        (0.08, 0.1, None, None),
    ]


def test_blocked_time_without_reports_is_the_wait_before_an_end() -> None:
    # 20 ms blocked in pieces too short to be told: the tail before the end, at most 1 ms of it where it was watched
    (wait,) = find_waits(region([(0.02, 0.06)], [], 0.02))
    assert (wait.start_s, wait.end_s) == pytest.approx((0.059, 0.06))


@given(
    calls=st.lists(
        st.tuples(st.integers(-20, 99), st.integers(0, 60)), max_size=12, unique_by=lambda c: c[0]
    ),
    cuts=st.lists(st.integers(0, 100), max_size=8, unique=True),
)
def test_waits_never_overlap_and_end_with_what_was_called_before(
    calls: list[tuple[int, int]], cuts: list[int]
) -> None:
    bounds = sorted(cuts)
    blocked = [
        (low / 1000, high / 1000) for low, high in zip(bounds[::2], bounds[1::2], strict=False)
    ]
    made = region([(s / 1000, (s + d) / 1000) for s, d in sorted(calls)], blocked, 0.1)
    starts = {call.row: call.start_s for call in made.pending}
    reached = 0.0
    for wait in find_waits(made):
        assert wait.waited_row is not None
        assert reached <= wait.start_s < wait.end_s
        assert starts[wait.waited_row] <= wait.start_s + 1e-9
        reached = wait.end_s
