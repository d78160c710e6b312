"""When a job without an episode is asked about as a whole, and how long what was found lasts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from rootwalk.graph.live.standing import MISSES_TO_END, REFRESH_S, Standing
from rootwalk.graph.model import Onset, Window
from rootwalk.graph.verdict import empty_verdict

NOBODY = empty_verdict("j1", 0, 4, ())


def _ask_all(standing: Standing, steps: int) -> list[int]:
    """Return at which numbers of steps a job is asked about in which nothing is found."""
    asked = []
    for count in range(steps):
        if standing.is_due(count, float(count)):
            asked.append(count)
            standing.pace.note(float(count), 0.0)
            standing.note(NOBODY, count, count)
    return asked


class _Finding:
    """All that is asked of a finding."""

    onset = Onset(1, 1000)


def _found(last: int) -> Any:
    found: Any = (_Finding(),)
    return replace(NOBODY, kind="slow", findings=found, window=Window(1, 2, 1, last))


def test_a_job_is_asked_about_when_it_has_a_history_and_then_ever_more_rarely() -> None:
    asked = _ask_all(Standing(), 2000)
    assert asked[0] == 21
    assert all(1.5 <= later / sooner < 1.55 for sooner, later in pairwise(asked))


def test_what_is_found_is_open_until_it_is_missed_twice() -> None:
    standing = Standing()
    first = standing.note(_found(40), 40, 5)
    assert first is not None
    assert (first.first_step, first.last_step, first.is_open, first.detected_unix_ns) == (
        1,
        40,
        True,
        5,
    )
    later = standing.note(_found(80), 80, 9)
    assert later is not None
    assert (later.last_step, later.detected_unix_ns) == (80, 5)
    for _ in range(MISSES_TO_END - 1):
        missed = standing.note(NOBODY, 90, 10)
        assert missed is not None
        assert missed.is_open
    ended = standing.note(NOBODY, 95, 11)
    assert ended is not None
    assert not ended.is_open
    assert standing.span is None


def test_what_is_found_is_looked_at_again_after_a_minute() -> None:
    standing = Standing()
    standing.pace.note(0.0, 0.0)
    standing.note(_found(40), 40, 5)
    assert not standing.is_due(45, REFRESH_S - 1.0)
    assert standing.is_due(45, REFRESH_S)
    assert not standing.is_due(40, REFRESH_S)
