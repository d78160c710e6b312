"""How one counter moved in slow steps: levels that fall to nothing, and sums that are told late."""

from __future__ import annotations

import numpy as np
import pytest

from rootwalk.graph.counters.movement import (
    Movement,
    Points,
    StepSpans,
    reached,
    since_nothing,
    watch,
)
from rootwalk.graph.counters.rule import Kind

QUIET, SLOW = 30, 10


def fall(left: float, slow_s: float = 40.0) -> Movement | None:
    """Return the movement of a level of 18 that is another one in slow steps."""
    steps = np.concatenate([np.full(QUIET, 10.0), np.full(SLOW, slow_s)])
    ends = np.cumsum(steps)
    amount = np.concatenate([np.full(QUIET, 18.0), np.full(SLOW, left)])
    return watch(Kind.FALL, amount, StepSpans(ends - steps, ends, QUIET))


@pytest.mark.parametrize("left", [2.0, 0.0], ids=["some", "none"])
def test_a_level_that_falls_has_moved_though_nothing_is_left(left: float) -> None:
    movement = fall(left)
    assert movement is not None
    assert movement.settled >= 8.0
    assert movement.overlap == pytest.approx(1.0)


def test_a_level_that_stays_has_not() -> None:
    movement = fall(18.0)
    assert movement is not None
    assert movement.overlap == 0.0


def points(*told: tuple[float, float]) -> Points:
    """Return a sum told at some times."""
    times, values = zip(*told, strict=True)
    return Points(np.array(times), np.array(values), True)


def test_a_sum_that_is_told_late_was_nothing_since_others_of_it_were_told() -> None:
    late, early = points((300.0, 4.0)), points((0.0, 2.0), (60.0, 2.0))
    steps = np.full(QUIET + SLOW, 10.0)
    ends = np.cumsum(steps)
    spans = StepSpans(ends - steps, ends, QUIET)
    grown = reached(since_nothing([late], [late, early]), spans)
    assert grown is not None
    assert grown[[0, QUIET - 2, QUIET - 1, -1]].tolist() == [0.0, 0.0, 4.0, 4.0]


def test_nothing_is_known_of_a_sum_before_anything_was_told() -> None:
    late = points((300.0, 4.0))
    assert since_nothing([late], [late]) == [late]
