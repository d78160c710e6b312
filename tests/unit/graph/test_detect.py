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


@pytest.mark.parametrize(
    ("last", "start"),
    [
        ([3.6] * 3, 41),  # 51 healthy steps' worth
        ([0.9] * 3, 41),  # 10.5
        ([3.6] * 4, 41),
        ([0.85] * 3, None),  # 9.75
        ([3.6] * 2, None),  # two may be chance
        ([3.6, 0.2, 3.6, 3.6], None),
        ([3.6] * 3 + [0.2], None),  # it has come back
    ],
)
def test_three_steps_that_cost_much_are_told_while_they_last(
    last: list[float], start: int | None
) -> None:
    episodes = find_episodes(np.array([1.0] + [0.2] * 40 + last))
    assert [(e.start, e.stop) for e in episodes] == ([] if start is None else [(start, None)])


@pytest.mark.parametrize("seed", range(20))
def test_a_mood_before_a_fault_is_not_its_onset(seed: int) -> None:
    parts = [noisy(80, 0.2, seed), noisy(13, 0.24, seed + 1), noisy(60, 0.36, seed + 2)]
    episode = find_episodes(np.concatenate([[1.0], *parts]))[-1]
    assert abs(episode.start - 94) <= 1
    assert episode.stop is None


def test_a_fault_that_grows_begins_where_it_begins() -> None:
    (episode,) = find_episodes(np.array([1.0] + [0.2] * 60 + [0.26] * 30 + [0.36] * 20))
    assert episode.start == 61


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


def scattered(
    level: np.ndarray[tuple[int], np.dtype[np.float64]], sigma: float, seed: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    noise = np.exp(np.random.default_rng(seed).normal(0.0, sigma, level.size))
    return np.concatenate([[2.0], 0.2 * level * noise])


def found_at(
    times: np.ndarray[tuple[int], np.dtype[np.float64]], last: int
) -> tuple[int, float] | None:
    """Return first step and base of the episode that covers a step near the end, None without one."""
    found = [e for e in find_episodes(times) if e.stop is None or e.stop > last]
    return (found[0].start, found[0].base_s) if found else None


@pytest.mark.parametrize(("sigma", "least"), [(0.10, 40), (0.15, 39), (0.20, 35)])
def test_half_as_slow_again_is_seen_through_noise(sigma: float, least: int) -> None:
    # 60 healthy steps and 60 of +50 %: of 40, five-step medians alone find 38, 11 and 1 where they begin
    level = np.repeat([1.0, 1.5], 60)
    found = [found_at(scattered(level, sigma, seed), 100) for seed in range(40)]
    near = [one for one in found if one is not None and abs(one[0] - 61) <= 6]
    assert len(near) >= least
    # what was slow is no part of the base: three sigmas of a median of fifty
    assert all(abs(base_s / 0.2 - 1.0) < 3.0 * 1.2533 / 50**0.5 * sigma for _, base_s in near)


@pytest.mark.parametrize(("sigma", "least"), [(0.10, 40), (0.15, 38), (0.20, 33)])
def test_a_ramp_is_seen_through_noise(sigma: float, least: int) -> None:
    # 60 healthy steps, 30 on the way to +50 %, 30 there: five-step medians alone find 26, 13 and 5
    level = np.concatenate([np.ones(60), np.linspace(1.0, 1.5, 30), np.full(30, 1.5)])
    seen = [found_at(scattered(level, sigma, seed), 100) for seed in range(40)]
    assert sum(one is not None for one in seen) >= least


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "most"), [(0.10, 0), (0.15, 4), (0.20, 5)])
def test_noise_alone_is_healthy_nearly_always(sigma: float, most: int) -> None:
    # of 200, five-step medians alone call 0, 4 and 4 slow
    wrong = [s for s in range(200) if find_episodes(scattered(np.ones(150), sigma, 1000 + s))]
    assert len(wrong) <= most


@pytest.mark.parametrize(("sigma", "most"), [(0.15, 13), (0.20, 7)])
def test_twenty_steps_claim_no_burst_that_five_do_not(sigma: float, most: int) -> None:
    # 14 steps of +30 %: as many of 40 as five-step medians alone find
    level = np.concatenate([np.ones(60), np.full(14, 1.3), np.ones(46)])
    found = [find_episodes(scattered(level, sigma, seed)) for seed in range(40)]
    assert sum(bool(episodes) for episodes in found) <= most


def test_an_episode_of_a_quiet_job_ends_where_it_ends_though_twenty_steps_would_say_otherwise() -> (
    None
):
    # slow, usual for eight steps, slow: two episodes
    times = 0.2 * np.concatenate(
        [[10.0], np.ones(60), np.full(20, 1.5), np.ones(8), np.full(30, 1.5)]
    )
    assert [(e.start, e.stop) for e in find_episodes(times)] == [(61, 81), (89, None)]


def test_no_onset_is_found_in_the_middle_of_a_fault_that_a_noisy_history_half_hides() -> None:
    starts = []
    for seed in range(24):
        generator = np.random.default_rng(seed)
        parts = ((0.09, 0.03, 200), (0.097, 0.10, 60), (0.1245, 0.06, 240))
        times = np.concatenate(
            [level * generator.normal(1.0, sigma, count) for level, sigma, count in parts]
        )
        starts += [episodes[-1].start for episodes in [find_episodes(times)] if episodes]
    assert len(starts) >= 20
    assert max(starts) <= 262
