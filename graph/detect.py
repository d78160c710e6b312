"""Find slow episodes of a job against its own history.

    step time   ____.___..____|^^^^^^^^^^^^^^|____     cold start | history | episode | after
                              onset          end

Owns the step clock's statistics. An episode is a run of steps whose running median of five lies above the noise of
the steps before, or one in which single slow steps come far more often than before (`spikes`). Rare spikes, periodic
slow steps that history knows and drifts of a few per cent are not episodes.

Where single steps scatter by a tenth and more, five of them say little: the limit lies where the fault does, steps just
below it would count as healthy and lift the base, and those that dip below it would end the episode. There a running
median of twenty steps decides as well. It looks ahead, so that the history before an onset has nothing of it.

Source:
    Method C3, with a robust change point in place of BOCD: deterministic and exact for the sizes here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rootwalk.graph.columns import FloatArray
from rootwalk.graph.spikes import BURST_COST_STEPS, SpikeRun, find_spike_runs, median

# Fewer steps of history than this say too little about the job's own noise (contract section 2).
MIN_HISTORY_STEPS = 20
# History older than this may belong to another regime of the job.
MAX_HISTORY_STEPS = 50
# Steps of one running median: three slow steps of five are needed, so two spikes never are an episode.
MEDIAN_STEPS = 5
# Steps of the long running median, which scatters half as much.
LONG_STEPS = 20
# Fewer slow steps than this are a burst of a noisy job. Of 5,200 generated healthy series of 150 steps (independent
# noise of 15 to 30 %) five steps alone call 62 slow, and twenty steps one more; with 15 here it was 7 more in 1,200.
MIN_LONG_STEPS = 25
# Slower than this, a stretch of a noisy job is no mood of its machine: what is smaller, five steps have to show.
MIN_LONG_RATIO = 1.25
# Medians of five that dip by chance so many sigmas below the level of an episode do not end it.
DIP_SIGMAS = 3.0
# A slowdown below this ratio is not claimed (method C3: sustained more than 1.10).
MIN_RATIO = 1.10
# An episode shorter than `SHORT_EPISODE_STEPS` must stand out more: a burst of a busy machine looks like it.
MIN_SHORT_RATIO = 1.25
SHORT_EPISODE_STEPS = 10
# Where a step takes long it is not waited for five: so many slow ones, the last so far, that cost more than a burst are
# told.
URGENT_STEPS = 3
# Where more of the history's single steps are as slow, a few of them come together by chance.
MAX_KNOWN_RATIO = 0.05
# Distance from the base in robust sigmas of its five-step medians.
MIN_SIGMAS = 4.0
# At most so many first steps are cold start (imports, first touch, bucket rebuild).
MAX_COLD_STEPS = 10
# A first step this much above what follows belongs to the cold start.
COLD_RATIO = 1.25
# A job that becomes this much faster for the length of a history has a new usual time; smaller gains do not move it.
MAX_FASTER_RATIO = 0.75
MAD_TO_SIGMA = 1.4826
# Sigma of a median of n values, times the root of n, over theirs.
MEDIAN_TO_SIGMA = 1.2533


@dataclass(frozen=True, slots=True)
class Episode:
    """One slow stretch as positions in the series of step times.

    `stop` is one past the last slow step, None while it is still open. `base_s` is the median of the
    history, `history` its positions, `limit_s` the step time above which a step counts as slow;
    `is_intermittent` whether quiet steps belong to it.
    """

    start: int
    stop: int | None
    base_s: float
    limit_s: float
    history: tuple[int, ...]
    is_intermittent: bool = False


def cold_steps(step_s: FloatArray) -> int:
    """Return how many first steps are not history: the first, and those until times settle."""
    count = min(1, step_s.size)
    while count < min(MAX_COLD_STEPS, step_s.size - MEDIAN_STEPS):
        following = step_s[count + 1 : count + 1 + MIN_HISTORY_STEPS]
        if step_s[count] <= COLD_RATIO * median(following):
            break
        count += 1
    return count


def robust_sigma(values: FloatArray) -> float:
    """Return the scatter of values as a standard deviation, unmoved by a minority of outliers."""
    if values.size == 0:
        return 0.0
    return MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def noise_limit_s(history_s: FloatArray) -> float:
    """Return the step time that a five-step median of a healthy job does not exceed.

    Args:
        history_s: Healthy step times in order, at least `MEDIAN_STEPS`.

    Source:
        Method C3 (1.10 x base) and four robust sigmas of the medians; the sigma is the larger of the measured one
        and that of five independent steps (median of five: 1.2533 sigma / sqrt(5)), because overlapping medians of
        a short history understate it. The 95th percentile of the medians admits what history already showed.
    """
    base = median(history_s)
    medians = running_medians(history_s)
    sigma = _sigma_of_medians(history_s, medians)
    return max(MIN_RATIO * base, base + MIN_SIGMAS * sigma, float(np.quantile(medians, 0.95)))


def _sigma_of_medians(history_s: FloatArray, medians: FloatArray) -> float:
    """Return the sigma of five-step medians: measured, but at least that of independent steps."""
    return max(
        robust_sigma(medians), MEDIAN_TO_SIGMA * robust_sigma(history_s) / math.sqrt(MEDIAN_STEPS)
    )


def long_limit_s(history_s: FloatArray) -> float:
    """Return the step time that a twenty-step median of a healthy job does not exceed.

    Args:
        history_s: Healthy step times in order, at least `MEDIAN_STEPS`.

    Source:
        As for five steps; the history is too short to measure its own long medians, so neighbours are taken to hang
        together as five-step medians show, and squared, since what lasts adds up over twenty. Step times scatter more
        upwards, so the upper half counts where it is wider. The base is known from as many steps as there are, and
        errs as they do.
    """
    base = median(history_s)
    above_s = MAD_TO_SIGMA * median(history_s[history_s >= base] - base)
    single = MEDIAN_TO_SIGMA * max(robust_sigma(history_s), above_s)
    bound = robust_sigma(running_medians(history_s)) / max(single / math.sqrt(MEDIAN_STEPS), 1e-12)
    sigma = single * max(bound, 1.0) ** 2 * math.sqrt(1.0 / LONG_STEPS + 1.0 / history_s.size)
    return max(MIN_LONG_RATIO * base, base + MIN_SIGMAS * sigma)


def running_medians(values: FloatArray, steps: int = MEDIAN_STEPS) -> FloatArray:
    """Return the median of every `steps` neighbours; entry i covers i to i + steps - 1, fewer values have none."""
    if values.size < steps:
        return np.zeros(0)
    windows = np.lib.stride_tricks.sliding_window_view(values, steps)
    return np.asarray(np.median(windows, axis=1), dtype=np.float64)


def find_episodes(step_s: FloatArray) -> tuple[Episode, ...]:
    """Return the slow episodes of a job in order, each against the steps before it.

    Args:
        step_s: Time of each step, (steps,), seconds.

    Returns:
        Nothing when there are fewer than `MIN_HISTORY_STEPS` healthy steps before any slow stretch.
    """
    first = cold_steps(step_s)
    if step_s.size < first + MIN_HISTORY_STEPS + MEDIAN_STEPS:
        return ()
    joined = _join(_find_sustained(step_s, first), step_s)
    sustained = tuple(_without_prelude(episode, step_s) for episode in joined)
    runs = find_spike_runs(step_s, first, MIN_HISTORY_STEPS, MAX_HISTORY_STEPS)
    return _merge(sustained, runs, step_s)


def _join(episodes: tuple[Episode, ...], step_s: FloatArray) -> tuple[Episode, ...]:
    """Return as one the episodes between which the job did not come back halfway to its base.

    Where history was noisy its limit lies close below a fault: a few quicker steps end an episode, and the next one
    would have its onset in the middle of the fault.
    """
    joined: list[Episode] = []
    for episode in episodes:
        last = joined[-1] if joined else None
        if last is not None and last.stop is not None:
            between_s = step_s[last.stop : episode.start]
            level_s = median(step_s[last.start : last.stop])
            if between_s.size == 0 or median(between_s) > (last.base_s + level_s) / 2:
                joined[-1] = replace(last, stop=episode.stop)
                continue
        joined.append(episode)
    return tuple(joined)


def _without_prelude(episode: Episode, step_s: FloatArray) -> Episode:
    """Return an episode without first steps that were slower by much less than the rest of it.

    A mood of the machine just before a fault is not the fault's beginning; its steps are neither history nor episode.
    """
    values = step_s[episode.start : episode.stop]
    level_s = median(values)
    half_s = (episode.base_s + level_s) / 2
    full = np.flatnonzero(running_medians(values) > half_s)
    if full.size == 0 or full[0] == 0:
        return episode
    # Its step is among the five of the first median that is above.
    prelude = int(full[0])
    before_s = median(values[:prelude])
    cut = _split(values, prelude, prelude + MEDIAN_STEPS, before_s, level_s)
    if cut < MEDIAN_STEPS:
        return episode
    return replace(episode, start=episode.start + cut)


def _merge(
    sustained: tuple[Episode, ...], runs: tuple[SpikeRun, ...], step_s: FloatArray
) -> tuple[Episode, ...]:
    """Return one episode for what overlaps: the spikes are the whole of which sustained pieces are parts.

    A stretch that is slow throughout also has spikes at every step; it stays what it is.
    """
    size = step_s.size
    episodes = list(sustained)
    for run in runs:
        parts = [e for e in episodes if _overlap(e, run, size) > 0]
        covered = {i for e in parts for i in range(e.start, size if e.stop is None else e.stop)}
        inside = range(run.start, size if run.stop is None else run.stop)
        outside = [i for i in inside if i not in covered and step_s[i] > run.limit_s]
        # One spike beside a sustained episode may be there by chance.
        if len(parts) == 1 and len(outside) <= 1:
            continue
        start = min([run.start, *(e.start for e in parts)])
        stops = [run.stop, *(e.stop for e in parts)]
        stop = None if None in stops else max(s for s in stops if s is not None)
        history = tuple(i for i in run.healthy if i < start)[-MAX_HISTORY_STEPS:]
        if len(history) < MIN_HISTORY_STEPS:
            continue
        merged = Episode(start, stop, run.base_s, run.limit_s, history, is_intermittent=True)
        episodes = [e for e in episodes if e not in parts] + [merged]
    return tuple(sorted(episodes, key=lambda e: e.start))


def _overlap(episode: Episode, run: SpikeRun, size: int) -> int:
    """Return how many steps an episode and a stretch of spikes have in common."""
    stops = [size if stop is None else stop for stop in (episode.stop, run.stop)]
    return max(min(stops) - max(episode.start, run.start), 0)


def _find_sustained(step_s: FloatArray, first: int) -> tuple[Episode, ...]:
    medians, long_medians = running_medians(step_s), running_medians(step_s, LONG_STEPS)
    episodes: list[Episode] = []
    healthy = list(range(first, first + MIN_HISTORY_STEPS))
    position = first + MIN_HISTORY_STEPS
    while position < medians.size:
        history = healthy[-MAX_HISTORY_STEPS:]
        base_s = median(step_s[history])
        episode = _episode_at(step_s, medians, position, history, base_s)
        # No limit is lower than this, and measuring the noise of every healthy step would take most of the time.
        is_long = position < long_medians.size and long_medians[position] > MIN_LONG_RATIO * base_s
        if is_long and (episode is None or _is_blurred(step_s, episode)):
            longer = _measure_long(step_s, long_medians, position, history)
            if longer is not None and not _will_show(step_s, medians, position, history):
                episode = longer
        if episode is None and _is_faster(step_s, position, base_s):
            # What was before the gain is no longer usual: begin a new history here.
            healthy = list(range(position, position + MIN_HISTORY_STEPS))
            position += MIN_HISTORY_STEPS
            continue
        if episode is None:
            healthy.append(position)
            position += 1
            continue
        episodes.append(episode)
        if episode.stop is None:
            break
        healthy = [index for index in healthy if index < episode.start]
        position = episode.stop
    return tuple(episodes)


def _episode_at(
    step_s: FloatArray, medians: FloatArray, position: int, history: list[int], base_s: float
) -> Episode | None:
    """Return the episode that five-step medians show at a position, if any."""
    if medians[position] <= MIN_RATIO * base_s:
        return None
    limit_s = noise_limit_s(step_s[history])
    if medians[position] <= limit_s:
        return None
    return _measure(step_s, medians, position, history, limit_s)


def _will_show(step_s: FloatArray, medians: FloatArray, position: int, history: list[int]) -> bool:
    """Return whether five-step medians show clearly what a long one sees coming: they see its ends better."""
    limit_s = noise_limit_s(step_s[history])
    for ahead in range(position, min(position + LONG_STEPS, medians.size)):
        if medians[ahead] > limit_s:
            episode = _measure(step_s, medians, ahead, history, limit_s)
            if episode is not None and not _is_blurred(step_s, episode):
                return True
    return False


def _is_blurred(step_s: FloatArray, episode: Episode) -> bool:
    """Return whether medians of five may have ended an episode, or a piece of one, by chance."""
    if episode.stop is None:
        return False
    history_s = step_s[list(episode.history)]
    level_s = median(step_s[episode.start : episode.stop])
    back_s = max(episode.limit_s, (episode.base_s + level_s) / 2)
    # What is slower scatters more, in the same ratio.
    sigma = _sigma_of_medians(history_s, running_medians(history_s)) * level_s / episode.base_s
    return level_s - back_s < DIP_SIGMAS * sigma


def _is_faster(step_s: FloatArray, position: int, base_s: float) -> bool:
    """Return whether the job runs far below its history for as long as a history takes."""
    following = step_s[position : position + MIN_HISTORY_STEPS]
    limit_s = MAX_FASTER_RATIO * base_s
    if following.size < MIN_HISTORY_STEPS or float(step_s[position]) >= limit_s:
        return False
    return median(following) < limit_s


def _measure(
    step_s: FloatArray, medians: FloatArray, position: int, history: list[int], limit_s: float
) -> Episode | None:
    """Return the episode that begins near a position, or None if it is too short or too small."""
    base_s = median(step_s[history])
    level_s = median(step_s[position : position + 2 * MEDIAN_STEPS])
    start = _split(step_s, position - 2, position + MEDIAN_STEPS, base_s, level_s)
    back_s = max(limit_s, (base_s + level_s) / 2)
    stop: int | None = None
    for index in range(start + 1, medians.size):
        if medians[index] <= back_s:
            stop = _split(step_s, index, index + MEDIAN_STEPS, level_s, base_s)
            break
    values = step_s[start : stop if stop is not None else step_s.size]
    is_short = values.size < SHORT_EPISODE_STEPS
    if is_short and float((step_s[history] > back_s).mean()) > MAX_KNOWN_RATIO:
        return None
    ratio = MIN_SHORT_RATIO if is_short else MIN_RATIO
    is_enough = values.size >= MEDIAN_STEPS or (stop is None and _is_urgent(values, base_s, back_s))
    if not is_enough or median(values) <= max(ratio * base_s, limit_s):
        return None
    kept = tuple(index for index in history if index < start)
    return Episode(start, stop, base_s, limit_s, kept)


def _is_urgent(values: FloatArray, base_s: float, back_s: float) -> bool:
    """Return whether a few last steps have cost so much that it is not waited for more of them."""
    is_slow = values.size >= URGENT_STEPS and float(values.min()) > back_s
    return is_slow and float((values - base_s).sum()) >= BURST_COST_STEPS * base_s


def _measure_long(
    step_s: FloatArray, medians: FloatArray, position: int, history: list[int]
) -> Episode | None:
    """Return the episode that twenty-step medians show from a position on, or None if it is too short or too small."""
    base_s, limit_s = median(step_s[history]), long_limit_s(step_s[history])
    if medians[position] <= limit_s:
        return None
    half = LONG_STEPS // 2
    level_s = median(step_s[position + half : position + half + LONG_STEPS])
    start = _split(step_s, position - 2, position + LONG_STEPS, base_s, level_s)
    back_s = max(limit_s, (base_s + level_s) / 2)
    stop: int | None = None
    for index in range(start + 1, medians.size):
        if medians[index] <= back_s:
            stop = _split(step_s, index, index + LONG_STEPS, level_s, base_s)
            break
    values = step_s[start : stop if stop is not None else step_s.size]
    if values.size < MIN_LONG_STEPS or median(values) <= limit_s:
        return None
    kept = tuple(index for index in history if index < start)
    return Episode(start, stop, base_s, limit_s, kept)


def _split(step_s: FloatArray, low: int, high: int, before_s: float, after_s: float) -> int:
    """Return the position in [low, high] that best separates two levels, by absolute deviation."""
    low, high = max(low, 0), min(high, step_s.size)
    costs = [
        float(np.abs(step_s[low:cut] - before_s).sum() + np.abs(step_s[cut:high] - after_s).sum())
        for cut in range(low, high + 1)
    ]
    return low + int(np.argmin(costs))
