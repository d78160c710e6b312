"""Intermittent slowdowns: single slow steps that come far more often than before, and noise that is none."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from rootwalk.graph.detect import MAX_HISTORY_STEPS, MIN_HISTORY_STEPS, find_episodes
from rootwalk.graph.spikes import (
    SpikeRun,
    chance_of_many,
    count_beginnings,
    find_spike_runs,
    spike_limit_s,
)

Times = npt.NDArray[np.float64]
ONSET = 90


def healthy(seed: int, steps: int, rate: float, *, sigma: float = 0.05, burst: int = 1) -> Times:
    """Steps of 0.2 s with lognormal jitter; spikes begin at a rate and last up to `burst` steps."""
    random = np.random.default_rng(seed)
    times = 0.2 * np.exp(random.normal(0.0, sigma, steps))
    position = 0
    while position < steps:
        if random.random() < rate:
            length = int(random.integers(1, burst + 1))
            times[position : position + length] *= random.uniform(1.3, 3.0)
            position += length
        position += 1
    return times


def intermittent(seed: int, count: int = 60, probability: float = 0.5, after: int = 0) -> Times:
    """A healthy job in which every other step, by chance, takes 60 % longer from step 90 on."""
    times = healthy(seed, ONSET + count + after, 0.01)
    hit = np.random.default_rng([3, seed]).random(count) < probability
    times[ONSET : ONSET + count] += 0.12 * hit
    return times


def runs(times: Times) -> tuple[SpikeRun, ...]:
    return find_spike_runs(times, 1, MIN_HISTORY_STEPS, MAX_HISTORY_STEPS)


@pytest.mark.parametrize(("rate", "burst"), [(0.02, 1), (0.02, 5)])
def test_at_most_one_healthy_job_in_a_thousand_is_accused(rate: float, burst: int) -> None:
    false = sum(bool(runs(healthy(seed, 150, rate, burst=burst))) for seed in range(1000))
    assert false <= 1


def test_every_other_step_for_sixty_steps_is_found_99_times_in_100() -> None:
    found = [runs(intermittent(seed)) for seed in range(300)]
    assert sum(len(item) == 1 and item[0].stop is None for item in found) >= 297
    onsets = np.array([item[0].start for item in found if item])
    assert np.median(np.abs(onsets - ONSET)) <= 1


@pytest.mark.parametrize("seed", range(30))
def test_it_is_one_episode_from_the_first_to_the_last_spike(seed: int) -> None:
    (episode,) = find_episodes(intermittent(seed))
    assert abs(episode.start - ONSET) <= 8
    assert episode.stop is None
    assert episode.base_s == pytest.approx(0.2, rel=0.03)
    assert max(episode.history) < episode.start


@pytest.mark.parametrize("seed", range(30))
def test_it_closes_with_its_last_spike(seed: int) -> None:
    times = intermittent(seed, after=60)
    closed = [e for e in find_episodes(times) if e.is_intermittent]
    assert len(closed) == 1
    assert closed[0].stop is not None
    assert abs(closed[0].stop - (ONSET + 60)) <= 12


def test_sustained_pieces_of_an_intermittent_stretch_are_parts_of_it() -> None:
    times = np.full(150, 0.2)
    # |||||||| is an episode of its own; what comes before and after belongs to the same trouble
    pattern = "|__|_|__||_|_||||||||_|__|_||__|_|_||_|__|_|"
    times[ONSET : ONSET + len(pattern)] += [0.12 * (mark == "|") for mark in pattern]
    (episode,) = find_episodes(times)
    assert (episode.start, episode.is_intermittent) == (ONSET, True)


def test_a_sustained_slowdown_stays_what_it_is() -> None:
    times = healthy(1, 150, 0.0)
    times[ONSET:] += 0.12
    (episode,) = find_episodes(times)
    assert (abs(episode.start - ONSET) <= 1, episode.is_intermittent) == (True, False)


@pytest.mark.parametrize("period", [4, 10, 20])
def test_a_periodic_slow_step_that_history_knows_is_none(period: int) -> None:
    times = healthy(2, 300, 0.0)
    times[5::period] += 0.2
    assert runs(times) == ()


def test_one_burst_is_none() -> None:
    times = healthy(3, 150, 0.0)
    times[[90, 91, 93, 94, 95, 97, 99, 100]] += 0.2
    assert runs(times) == ()


def test_more_spikes_that_hardly_cost_are_none() -> None:
    # every third step 26 % longer: 9 % in the mean
    times = np.full(150, 0.2)
    times[ONSET::3] = 0.2521
    assert runs(times) == ()


def rare(seed: int, every: float, seconds: float, history: int = 130, count: int = 110) -> Times:
    """A healthy job in which now and then, about every so many steps, one takes so much longer."""
    times = healthy(seed, history + count, 0.01)
    random = np.random.default_rng([5, seed])
    position = history
    while position < times.size:
        times[position] += seconds
        position += max(round(every * random.uniform(0.8, 1.2)), 1)
    return times


def test_one_step_of_seven_that_takes_four_times_as_long_is_found() -> None:
    # the others' histories of 130 steps have too many spikes of their own
    found = [runs(rare(seed, 7, 0.6)) for seed in range(60)]
    assert sum(len(item) == 1 and item[0].stop is None for item in found) >= 50
    onsets = np.array([item[0].start for item in found if item])
    assert np.median(np.abs(onsets - 130)) <= 1


def test_large_spikes_that_the_history_never_had_are_seen_at_the_fifth() -> None:
    # 5 of them within 35 steps; the others' histories have as large ones of their own
    soon = [runs(rare(seed, 7, 0.6)[: 130 + 36]) for seed in range(60)]
    assert sum(bool(item) for item in soon) >= 36


def test_rare_and_large_is_one_episode_that_has_its_history() -> None:
    (episode,) = find_episodes(rare(1, 7, 0.6))
    assert (abs(episode.start - 130) <= 1, episode.is_intermittent) == (True, True)
    assert max(episode.history) < episode.start
    assert episode.base_s == pytest.approx(0.2, rel=0.03)


@pytest.mark.parametrize("small", [(60, 61, 90), (60, 90, 128)])
def test_small_spikes_of_the_history_say_nothing_of_large_ones(small: tuple[int, ...]) -> None:
    found = []
    for seed in range(60):
        times = rare(seed, 8, 0.6)
        times[list(small)] = 0.28
        found.append(runs(times))
    assert sum(len(item) == 1 and item[0].stop is None for item in found) >= 45


def test_rare_and_large_closes_with_its_last_spike() -> None:
    times = np.concatenate([rare(2, 7, 0.6), healthy(3, 150, 0.0)])
    (run,) = runs(times)
    assert run.stop is not None
    assert 225 <= run.stop <= 240


def test_one_step_of_seven_that_costs_little_is_none() -> None:
    # 40 % longer: 6 % in the mean
    assert not any(runs(rare(seed, 7, 0.08)) for seed in range(60))


def test_one_long_pause_makes_cheap_spikes_no_slowdown() -> None:
    for seed in range(60):
        times = rare(seed, 7, 0.06)
        times[200] = 5.0
        assert runs(times) == ()


@pytest.mark.parametrize("every", [7, 12, 30, 50, 100])
@pytest.mark.parametrize("seconds", [1.0, 5.0])
def test_long_steps_at_even_distances_that_the_job_always_had_are_none(
    every: int, seconds: float
) -> None:
    # a checkpoint or an evaluation on all ranks, first seen after as many steps
    times = healthy(4, 1000, 0.0)
    times[every::every] += seconds
    assert runs(times) == ()


def test_a_short_history_cannot_say_how_rare_spikes_are() -> None:
    assert not any(runs(rare(seed, 9, 0.6, history=30)) for seed in range(30))


@pytest.mark.parametrize("pauses", [(90,), (90, 300, 310, 480)])
def test_a_few_long_pauses_are_none(pauses: tuple[int, ...]) -> None:
    times = healthy(6, 600, 0.01)
    times[list(pauses)] = 5.0
    assert find_episodes(times) == ()


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_hardly_a_long_healthy_job_is_accused(scale: float) -> None:
    # 2 % of spikes, also such as cost much: each takes up to twelve steps' time
    false = 0
    for seed in range(100):
        times = healthy(seed, 600, 0.02)
        times[times > 0.25] *= scale
        false += bool(runs(times))
    assert false <= 2


def test_chance_of_many_is_the_tail_of_what_the_history_lets_expect() -> None:
    # one chance: the mean of the rate by Laplace's rule
    assert chance_of_many(1, 1, 2, 18) == pytest.approx(3 / 20)
    # two of two: E[p^2] of a beta distribution (3, 17)
    assert chance_of_many(2, 2, 2, 18) == pytest.approx(3 * 4 / (20 * 21))
    assert chance_of_many(1, 2, 2, 18) == pytest.approx(1 - 17 * 18 / (20 * 21))
    assert chance_of_many(0, 5, 2, 18) == 1.0


def test_beginnings_are_spikes_after_a_quiet_step() -> None:
    pattern = np.array([mark == "|" for mark in "|__||_|||__"])
    assert count_beginnings(pattern) == (3, 5)
    assert count_beginnings(pattern[:0]) == (0, 0)


def test_a_spike_is_six_sigmas_and_a_quarter_above_the_base() -> None:
    assert spike_limit_s(np.full(30, 0.2)) == pytest.approx(0.25)
    # median deviation 0.01: 6 x 0.0148 above 0.2
    assert spike_limit_s(np.array([0.19, 0.21, 0.2] * 10)) == pytest.approx(0.2890, abs=1e-4)
