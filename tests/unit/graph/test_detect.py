"""Step times in seconds; onset positions are readable from how each series is put together."""

from __future__ import annotations

import numpy as np
import pytest

from rootwalk.graph.detect import cold_steps, find_episodes, noise_limit_s


def noisy(
    count: int, level: float, seed: int, width: float = 0.1
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return level * (1.0 + np.random.default_rng(seed).uniform(-width, width, count))


@pytest.mark.parametrize("seed", range(20))
def test_onset_and_end_are_found_within_two_steps(seed: int) -> None:
    times = np.concatenate(
        [[2.0], noisy(60, 0.2, seed), noisy(30, 0.3, seed + 100), noisy(40, 0.2, seed + 200)]
    )
    (episode,) = find_episodes(times)
    assert abs(episode.start - 61) <= 2
    assert episode.stop is not None
    assert abs(episode.stop - 91) <= 2
    assert episode.base_s == pytest.approx(0.2, rel=0.05)


def test_an_episode_at_the_end_is_open() -> None:
    (episode,) = find_episodes(np.array([1.0] + [0.2] * 40 + [0.26] * 20))
    assert (episode.start, episode.stop) == (41, None)


@pytest.mark.parametrize("seed", range(200))
def test_jitter_of_ten_per_cent_is_healthy(seed: int) -> None:
    assert find_episodes(noisy(300, 0.2, seed)) == ()


@pytest.mark.parametrize("seed", range(50))
def test_normal_noise_of_ten_per_cent_is_healthy(seed: int) -> None:
    assert find_episodes(0.2 * np.exp(np.random.default_rng(seed).normal(0.0, 0.1, 300))) == ()


def test_isolated_spikes_are_healthy() -> None:
    times = np.full(200, 0.2)
    times[[50, 51, 90, 130, 131, 170]] = 1.0
    assert find_episodes(times) == ()


def test_a_slow_drift_of_five_per_cent_is_healthy() -> None:
    assert find_episodes(np.linspace(0.2, 0.21, 300)) == ()


def test_a_periodic_slow_step_is_healthy() -> None:
    times = np.full(200, 0.2)
    times[::10] = 0.6
    assert find_episodes(times) == ()


def test_a_burst_of_six_steps_needs_more_than_a_quarter() -> None:
    small, large = np.full(100, 0.2), np.full(100, 0.2)
    small[50:56], large[50:56] = 0.24, 0.26
    assert find_episodes(small) == ()
    (episode,) = find_episodes(large)
    assert (episode.start, episode.stop) == (50, 56)


def test_fewer_than_twenty_steps_of_history_say_nothing() -> None:
    assert find_episodes(np.array([1.0] + [0.2] * 15 + [0.4] * 8)) == ()


def test_the_cold_start_is_the_first_step_and_those_until_times_settle() -> None:
    assert cold_steps(np.array([3.0, 1.0, 0.5] + [0.2] * 30)) == 3
    assert cold_steps(np.full(30, 0.2)) == 1
    assert cold_steps(np.array([])) == 0


def test_the_limit_of_a_quiet_job_is_ten_per_cent() -> None:
    assert noise_limit_s(np.full(30, 0.2)) == pytest.approx(0.22)


def test_a_gain_begins_a_new_history() -> None:
    # The last stretch is no slower than the first, and half again as slow as what the job did before it.
    times = np.array([1.0] + [0.4] * 60 + [0.2] * 25 + [0.3] * 40)
    (episode,) = find_episodes(times)
    assert (episode.start, episode.stop) == (86, None)
    assert episode.base_s == pytest.approx(0.2)


def test_a_small_gain_is_no_new_history() -> None:
    assert find_episodes(np.array([1.0] + [0.24] * 60 + [0.2] * 25 + [0.24] * 40)) == ()
