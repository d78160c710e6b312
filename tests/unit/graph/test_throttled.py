"""Which part of the time behind strangers was the limit's; all numbers are seconds of one rank in one window."""

from __future__ import annotations

import pytest

from rootwalk.graph.throttled import hidden_s, is_limit


@pytest.mark.parametrize(
    ("throttled_s", "idle_s", "foreign_s", "blocked_s", "expected_s"),
    [
        # the gap was idle: nothing of it was filled
        (6.0, 6.0, 1.0, 0.5, 0.0),
        # somebody came by now and then, however long the thread was blocked besides
        (6.0, 5.0, 1.0, 9.0, 1.0),
        # somebody filled the whole gap, and the group can hardly have stood at another time
        (6.0, 0.0, 6.0, 1.0, 6.0),
        # it stood for longer than that, while the thread was blocked
        (6.0, 0.0, 4.0, 2.0, 4.0),
        # a competitor is excused for no more than the group stood
        (2.0, 0.0, 6.0, 0.5, 2.0),
        # the thread was blocked for as long: it may have been another thread of the group
        (4.0, 0.0, 4.0, 4.0, 0.0),
        # or for less: the rest is certain
        (6.0, 0.0, 6.0, 4.0, 2.0),
        # no limit, a competitor
        (0.0, 0.0, 6.0, 0.0, 0.0),
        # less throttled than in healthy steps
        (-1.0, 0.0, 6.0, 0.0, 0.0),
    ],
)
def test_time_behind_strangers_is_the_limits_where_the_group_certainly_stood(
    throttled_s: float, idle_s: float, foreign_s: float, blocked_s: float, expected_s: float
) -> None:
    assert hidden_s(throttled_s, idle_s, foreign_s, blocked_s) == pytest.approx(expected_s)


def test_nobody_is_ever_excused_for_longer_than_he_ran_or_than_the_group_stood() -> None:
    grid = [0.0, 0.5, 1.0, 3.0, 10.0]
    for throttled_s in grid:
        for idle_s in grid:
            for foreign_s in grid:
                for blocked_s in grid:
                    got_s = hidden_s(throttled_s, idle_s, foreign_s, blocked_s)
                    assert 0.0 <= got_s <= foreign_s
                    assert got_s <= max(throttled_s - idle_s, 0.0)


def test_an_idle_cpu_is_the_limits_where_the_group_stood_for_half_of_it_or_nobody_looked() -> None:
    assert [is_limit(throttled_s, 4.0) for throttled_s in (None, 2.0, 1.9)] == [True, True, False]
