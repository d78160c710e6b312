"""How one counter moved in slow steps: levels that fall to nothing."""

from __future__ import annotations

import numpy as np
import pytest

from rootwalk.graph.counters.movement import Movement, StepSpans, watch
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
