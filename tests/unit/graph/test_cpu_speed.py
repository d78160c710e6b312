"""How much slower all CPUs have become: the least of them counts, and only where all are told of."""

from __future__ import annotations

import numpy as np
import pytest

from rootwalk.graph.columns import NO_PROBES, ProbeRows
from rootwalk.graph.cpu_speed import (
    ProbeTimes,
    common_slowdown,
    is_slow_in_turn,
    probe_times,
    slowed_part,
    times_of_all,
)

HISTORY, WINDOW = range(20), range(20, 40)


def rows(*times: tuple[float, float]) -> ProbeRows:
    """Return what the work takes each rank before and in the window, us."""
    steps = np.tile(np.arange(40), len(times))
    ranks = np.repeat(np.arange(len(times)), 40)
    took = [before if step < 20 else now for before, now in times for step in range(40)]
    return ProbeRows(steps, ranks, np.array(took) * 1e-6)


def slowdown_of(probes: ProbeRows, ranks: list[int], history: range, window: range) -> float:
    return common_slowdown(times_of_all(probes, ranks, history, window))


def test_the_least_slowdown_is_what_all_have() -> None:
    assert slowdown_of(rows((16, 32), (20, 30)), [0, 1], HISTORY, WINDOW) == pytest.approx(0.5)


@pytest.mark.parametrize("times", [[(16, 32), (16, 17)], [(16, 17), (16, 17)], [(16, 12)] * 2])
def test_as_fast_as_before_is_not_slower(times: list[tuple[float, float]]) -> None:
    assert slowdown_of(rows(*times), [0, 1], HISTORY, WINDOW) == 0.0


def test_not_told_of_a_rank_or_of_few_steps() -> None:
    told = rows((16, 32), (16, 32))
    assert slowdown_of(told, [0, 1, 2], HISTORY, WINDOW) == 0.0
    assert slowdown_of(told, [0, 1], range(4), WINDOW) == 0.0
    assert slowdown_of(told, [0, 1], HISTORY, range(20, 24)) == 0.0
    assert slowdown_of(NO_PROBES, [0, 1], HISTORY, WINDOW) == 0.0
    assert slowdown_of(NO_PROBES, [], HISTORY, WINDOW) == 0.0


def test_one_long_look_makes_no_slow_cpu() -> None:
    told = rows((16, 16))
    told.probe_s[30] = 1.0
    times = probe_times(told, 0, HISTORY, WINDOW)
    assert times is not None
    assert times[:2] == pytest.approx((16e-6, 16e-6 * 23 / 20))
    assert times.slowdown == 0.0


def test_a_core_whose_other_thread_works_now_and_then_is_no_slower_for_it() -> None:
    random = np.random.default_rng(3)
    is_shared = np.concatenate([random.random(50) < 0.4, random.random(50) < 0.6])
    took = np.where(is_shared, 27e-6, 16e-6)
    told = ProbeRows(np.arange(100), np.zeros(100, dtype=np.int64), took)
    assert slowdown_of(told, [0], range(50), range(50, 100)) == 0.0
    slower = ProbeRows(told.step, told.rank, np.where(told.step < 50, took, 1.8 * took))
    assert slowdown_of(slower, [0], range(50), range(50, 100)) > 0.6


def test_what_it_explains_but_for_little_it_explains() -> None:
    assert slowed_part(0.8, 10.0, 8.0) == 1.0
    assert slowed_part(0.8, 10.0, 10.0) == 1.0
    assert slowed_part(0.8, 10.0, 16.0) == pytest.approx(0.5)
    assert slowed_part(0.0, 10.0, 1.0) == 0.0
    assert slowed_part(0.8, 10.0, 0.0) == 0.0
    assert slowed_part(0.8, 10.0, -1.0) == 0.0


SLOW, AS_EVER = ProbeTimes(1.0, 1.5, 0.01), ProbeTimes(1.0, 1.01, 0.01)


@pytest.mark.parametrize(
    ("at_times", "level", "speeds", "told"),
    [
        (0.3, 1.5, (AS_EVER, SLOW), True),
        (0.2, 1.5, (AS_EVER, SLOW), False),
        (0.3, 1.5, (SLOW, AS_EVER), False),
        (0.3, 1.05, (AS_EVER, SLOW), False),
        (0.3, 1.12, (AS_EVER, SLOW), True),
        (0.0, 1.12, (AS_EVER, SLOW), False),
        (0.3, 1.5, (), False),
    ],
    ids=[
        "in many steps",
        "in few",
        "who runs longer is as fast",
        "by little",
        "by some",
        "in none",
        "not told",
    ],
)
def test_others_as_slow_in_many_steps(
    at_times: float, level: float, speeds: tuple[ProbeTimes, ...], told: bool
) -> None:
    times = np.ones((2, 100))
    times[1] = level
    times[0, : int(100 * at_times)] = level
    assert is_slow_in_turn(times, speeds) is told


def test_one_rank_alone_has_no_others() -> None:
    assert not is_slow_in_turn(np.full((1, 50), 1.5), (SLOW,))
