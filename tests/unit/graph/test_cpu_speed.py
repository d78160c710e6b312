"""How much slower all CPUs have become: the least of them counts, and only where all are told of."""

from __future__ import annotations

import numpy as np
import pytest

from rootwalk.graph.columns import NO_PROBES, ProbeRows
from rootwalk.graph.cpu_speed import common_slowdown, probe_times, slowed_part

HISTORY, WINDOW = range(20), range(20, 40)


def rows(*times: tuple[float, float]) -> ProbeRows:
    """Return what the work takes each rank before and in the window, us."""
    steps = np.tile(np.arange(40), len(times))
    ranks = np.repeat(np.arange(len(times)), 40)
    took = [before if step < 20 else now for before, now in times for step in range(40)]
    return ProbeRows(steps, ranks, np.array(took) * 1e-6)


def test_the_least_slowdown_is_what_all_have() -> None:
    assert common_slowdown(rows((16, 32), (20, 30)), [0, 1], HISTORY, WINDOW) == pytest.approx(0.5)


@pytest.mark.parametrize("times", [[(16, 32), (16, 17)], [(16, 17), (16, 17)], [(16, 12)] * 2])
def test_as_fast_as_before_is_not_slower(times: list[tuple[float, float]]) -> None:
    assert common_slowdown(rows(*times), [0, 1], HISTORY, WINDOW) == 0.0


def test_not_told_of_a_rank_or_of_few_steps() -> None:
    told = rows((16, 32), (16, 32))
    assert common_slowdown(told, [0, 1, 2], HISTORY, WINDOW) == 0.0
    assert common_slowdown(told, [0, 1], range(4), WINDOW) == 0.0
    assert common_slowdown(told, [0, 1], HISTORY, range(20, 24)) == 0.0
    assert common_slowdown(NO_PROBES, [0, 1], HISTORY, WINDOW) == 0.0
    assert common_slowdown(NO_PROBES, [], HISTORY, WINDOW) == 0.0


def test_one_long_look_makes_no_slow_cpu() -> None:
    told = rows((16, 16))
    told.probe_s[30] = 1.0
    times_s = probe_times(told, 0, HISTORY, WINDOW)
    assert times_s == pytest.approx((16e-6, 16e-6 * 23 / 20))


def test_what_it_explains_but_for_little_it_explains() -> None:
    assert slowed_part(0.8, 10.0, 8.0) == 1.0
    assert slowed_part(0.8, 10.0, 10.0) == 1.0
    assert slowed_part(0.8, 10.0, 16.0) == pytest.approx(0.5)
    assert slowed_part(0.0, 10.0, 1.0) == 0.0
    assert slowed_part(0.8, 10.0, 0.0) == 0.0
    assert slowed_part(0.8, 10.0, -1.0) == 0.0
