"""Whether work moves from rank to rank: on draws of a lot, and on all that looks alike over a window."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rootwalk.graph.columns import FloatArray
from rootwalk.graph.in_turn import is_in_turn
from rootwalk.graph.series import chance_of_at_most

STEPS = 60
SEEDS = range(20)
every_size = pytest.mark.parametrize("ranks", [2, 4, 8, 64])


def noise(seed: int, ranks: int, ratio: float = 0.1) -> tuple[np.random.Generator, FloatArray]:
    generator = np.random.default_rng(seed)
    return generator, generator.normal(0.0, ratio, (ranks, STEPS))


@every_size
def test_a_lot_is_in_turn(ranks: int) -> None:
    told = 0
    for seed in SEEDS:
        generator, excess_s = noise(seed, ranks)
        excess_s[generator.integers(0, ranks, STEPS), np.arange(STEPS)] += 1.0
        told += is_in_turn(excess_s)
    # One that draws it far more often than it should is late itself, as far as anybody can tell.
    assert told >= len(SEEDS) - 1


@every_size
@pytest.mark.parametrize("seed", SEEDS)
def test_everybody_slower_is_not(ranks: int, seed: int) -> None:
    _, excess_s = noise(seed, ranks, 0.3)
    assert not is_in_turn(excess_s + 1.0)


@every_size
@pytest.mark.parametrize("seed", SEEDS)
def test_everybody_slower_at_the_same_times_is_not(ranks: int, seed: int) -> None:
    generator, excess_s = noise(seed, ranks)
    assert not is_in_turn(excess_s + (generator.random(STEPS) < 0.3))


@every_size
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("part", [1.0, 0.8, 0.2])
def test_one_rank_that_is_late_in_some_or_all_steps_is_not(
    ranks: int, seed: int, part: float
) -> None:
    generator, excess_s = noise(seed, ranks)
    excess_s[ranks - 1] += generator.random(STEPS) < part
    assert not is_in_turn(excess_s)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_of_many_that_are_late_in_turn_are_two_that_are_late(seed: int) -> None:
    generator, excess_s = noise(seed, 8)
    excess_s[generator.integers(0, 2, STEPS), np.arange(STEPS)] += 1.0
    assert not is_in_turn(excess_s)


def test_thousands_of_steps_are_no_more_than_a_long_lot() -> None:
    generator = np.random.default_rng(1)
    excess_s = generator.normal(0.0, 0.1, (2, 3000))
    excess_s[generator.integers(0, 2, 3000), np.arange(3000)] += 1.0
    assert is_in_turn(excess_s)
    excess_s[1] += 1.0
    assert not is_in_turn(excess_s)


@pytest.mark.parametrize("draws", [10, 200])
def test_chance_is_that_of_counting(draws: int) -> None:
    exact = [math.comb(draws, won) * 0.3**won * 0.7 ** (draws - won) for won in range(draws + 1)]
    for most in (0, 3, draws // 2, draws):
        assert chance_of_at_most(most, draws, 0.3) == pytest.approx(sum(exact[: most + 1]))
    assert chance_of_at_most(-1, draws, 0.3) == 0.0


def test_a_few_steps_tell_nothing_and_one_rank_has_nobody_to_take_turns_with() -> None:
    few = np.eye(2)[[0, 1, 0, 1, 1, 0, 1, 0]].T
    assert not is_in_turn(few)
    assert not is_in_turn(np.tile(few[:1], 9))
    assert not is_in_turn(np.zeros((2, STEPS)))
    assert not is_in_turn(np.zeros((0, 0)))
    assert is_in_turn(np.tile(few, 9))
