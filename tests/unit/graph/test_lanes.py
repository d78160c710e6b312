"""Waits of the main thread, and ends of collectives that were noted late."""

from __future__ import annotations

import pytest

from rootwalk.graph.lanes import CollectiveCall, RankRows, correct_late_notes


def rows(calls: list[tuple[float, float]], blocked: list[tuple[float, float]]) -> RankRows:
    made = [CollectiveCall(row, start, end) for row, (start, end) in enumerate(calls)]
    return RankRows({}, {}, made, [call.start_s for call in made], blocked, [b[0] for b in blocked])


def ends(made: RankRows) -> list[float]:
    correct_late_notes(made)
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
