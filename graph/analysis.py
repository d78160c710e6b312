"""From telemetry on one clock to numbers: which window, how it compares with before, and what each cause costs.

Joins the pure steps of the method in order (detect, build, walk, descend, replay); has no rules and no text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rootwalk.graph.causes import Amounts, CauseKey
from rootwalk.graph.columns import FloatArray, IntArray, JobData
from rootwalk.graph.descend import Descent, descend
from rootwalk.graph.detect import (
    MAX_HISTORY_STEPS,
    MIN_HISTORY_STEPS,
    MIN_RATIO,
    Episode,
    cold_steps,
    find_episodes,
    noise_limit_s,
)
from rootwalk.graph.model import DataQuality, QualityCode
from rootwalk.graph.replay import MAX_EXACT_CAUSES, Counterfactual, removals, share_out
from rootwalk.graph.slots import SlotKeys
from rootwalk.graph.steps import OpKind, StepGraph, build
from rootwalk.graph.walk import Path, Waits, path_seconds, waits_by_culprit, walk

# Steps of the window when nothing stands out and the user named none.
DEFAULT_WINDOW_STEPS = 50
# Causes below this part of a step are not replayed on their own.
MIN_CAUSE_RATIO = 0.005
# Jobs count their steps from 0 or 1: what a store has first of another job may be anywhere in it.
LAST_FIRST_STEP = 1
# A cause that cost more than half as much in healthy steps is part of the job; it stays in the rest.
MIN_GROWTH = 2.0
# At most so many causes are tried alone before the largest are shared out exactly.
MAX_TRIED_CAUSES = 24


@dataclass(frozen=True, slots=True)
class StepClock:
    """The job's own clock: step k ends when its last rank ends it. Arrays over `numbers`, seconds.

    `start_s[k]` is the end of the step before, for the first step its earliest start.
    """

    numbers: tuple[int, ...]
    start_s: FloatArray
    end_s: FloatArray

    @property
    def step_s(self) -> FloatArray:
        """Time of each step."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Question:
    """Which steps are compared with which, as positions on the step clock; `stop` is exclusive.

    `history` is empty when the job has too little of its own; `is_slow` whether the window stands out; `is_alone`
    whether there are no peers either, so that only what a profile shows by itself is in question; `onset` is where the
    slowdown began that the window is a part of, None for where the window begins.
    """

    start: int
    stop: int
    is_open: bool
    is_slow: bool
    history: tuple[int, ...]
    limit_s: float | None
    is_alone: bool = False
    onset: int | None = None

    @property
    def is_start(self) -> bool:
        """Whether the job's first steps are held against later ones."""
        return bool(self.history) and self.history[0] >= self.stop


@dataclass(frozen=True, slots=True)
class NotReplayed:
    """A window whose records cannot be replayed, and what is wrong with them."""

    quality: tuple[DataQuality, ...]


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything measured about one slow window; times are seconds, per step where the name does not say."""

    window: StepGraph
    history: StepGraph | None
    path: Path
    waits: Waits
    history_waits: Waits | None
    causes: tuple[CauseKey, ...]
    cause_s: tuple[float, ...]
    cause_path_s: tuple[float, ...]
    counterfactual: Counterfactual
    slack_s: float
    amounts: Amounts
    quality: tuple[DataQuality, ...]


def step_clock(data: JobData) -> StepClock:
    """Return the end of every step over all ranks; steps that not every rank finished are left out."""
    steps = data.steps
    ranks = np.unique(steps.rank).size
    numbers, inverse, counts = np.unique(steps.step, return_inverse=True, return_counts=True)
    end_s = np.full(numbers.size, -np.inf)
    begin_s = np.full(numbers.size, np.inf)
    np.maximum.at(end_s, inverse, steps.end_s)
    np.minimum.at(begin_s, inverse, steps.start_s)
    full = counts == ranks
    return join_steps(numbers[full], begin_s[full], end_s[full])


def join_steps(numbers: IntArray, begin_s: FloatArray, end_s: FloatArray) -> StepClock:
    """Return the clock of steps in order: each begins where the one before ended, or where its first rank began it.

    Args:
        numbers: Step numbers, ascending.
        begin_s: When the first rank began each, seconds.
        end_s: When the last rank ended each, seconds.
    """
    start_s = begin_s.copy()
    adjacent = np.flatnonzero(np.diff(numbers) == 1) + 1
    start_s[adjacent] = end_s[adjacent - 1]
    return StepClock(tuple(int(n) for n in numbers), start_s, end_s)


def choose_window(
    clock: StepClock, steps: tuple[int, int] | None, *, is_profile: bool = False
) -> Question | None:
    """Return what to look at: the user's steps, the last open or closed episode, or the last steps.

    Args:
        clock: The job's step clock.
        steps: First and last step number that the user named, or None.
        is_profile: Whether it is a profile, which shows its waits for input in every step: then all of its steps.

    Returns:
        None when there is no step to look at.
    """
    if not clock.numbers:
        return None
    step_s = clock.step_s
    if steps is not None:
        chosen = [i for i, number in enumerate(clock.numbers) if steps[0] <= number <= steps[1]]
        return _chosen(clock, chosen[0], chosen[-1] + 1) if chosen else None
    episodes = find_episodes(step_s)
    if episodes:
        return _episode(clock, episodes[-1])
    stop = step_s.size
    if is_profile:
        return Question(0, stop, True, False, (), None)
    start = max(min(cold_steps(step_s), stop - 1), stop - DEFAULT_WINDOW_STEPS)
    history = tuple(range(cold_steps(step_s), stop))
    if len(history) < MIN_HISTORY_STEPS:
        return Question(start, stop, True, False, (), None)
    return Question(
        start, stop, True, False, history[-MAX_HISTORY_STEPS:], noise_limit_s(step_s[list(history)])
    )


def slower_alone(data: JobData, steps: tuple[int, int]) -> tuple[int, ...]:
    """Return the ranks whose own steps became slower in a window, each by its own clock.

    Where nothing shows how far clocks are apart, the end of a step over all ranks means nothing: a host whose clock is
    ahead hides what the others do. How long a rank's own steps took does not depend on its clock.

    Args:
        data: The job's steps.
        steps: First and last step of the window.
    """
    rows, slower = data.steps, []
    for rank in np.unique(rows.rank).tolist():
        mine = np.flatnonzero(rows.rank == rank)
        mine = mine[np.argsort(rows.step[mine], kind="stable")]
        clock = join_steps(rows.step[mine], rows.start_s[mine], rows.end_s[mine])
        question = choose_window(clock, None)
        if question is None or not question.is_slow:
            continue
        begin, end = clock.numbers[question.start], clock.numbers[question.stop - 1]
        if begin <= steps[1] and end >= steps[0]:
            slower.append(int(rank))
    return tuple(slower)


def _episode(clock: StepClock, episode: Episode) -> Question:
    stop = episode.stop if episode.stop is not None else len(clock.numbers)
    return Question(
        episode.start, stop, episode.stop is None, True, episode.history, episode.limit_s
    )


def _positions(episode: Episode, size: int) -> range:
    return range(episode.start, episode.stop if episode.stop is not None else size)


def _chosen(clock: StepClock, start: int, stop: int) -> Question:
    """Return the question for steps that the user named, against the healthy steps before them.

    A job's first steps have none before them, and are held against those in which it has warmed up.
    """
    step_s = clock.step_s
    episodes = find_episodes(step_s)
    slow = {i for e in episodes for i in _positions(e, step_s.size)}
    history = tuple(i for i in range(cold_steps(step_s), start) if i not in slow)[
        -MAX_HISTORY_STEPS:
    ]
    if start == 0 and stop <= cold_steps(step_s) and clock.numbers[0] <= LAST_FIRST_STEP:
        warm = range(cold_steps(step_s), step_s.size)
        history = tuple(i for i in warm if i not in slow)[:MAX_HISTORY_STEPS]
    if len(history) < MIN_HISTORY_STEPS:
        return Question(start, stop, stop == step_s.size, False, (), None)
    window_s, limit_s = step_s[start:stop], noise_limit_s(step_s[list(history)])
    is_slow = float(np.median(window_s)) > limit_s
    # Detection has held an episode against what was history then. Where a job changes its pace, a few steps more or
    # less in the history move the limit by a tenth.
    inside = [e for e in episodes if start in _positions(e, step_s.size)]
    onset = inside[0].start if inside else None
    if inside and _shows(inside[0], window_s):
        is_slow, limit_s = True, inside[0].limit_s
    return Question(start, stop, stop == step_s.size, is_slow, history, limit_s, onset=onset)


def _shows(episode: Episode, window_s: FloatArray) -> bool:
    """Return whether some steps of an episode are slow; of an intermittent one the median step may be quiet."""
    if episode.is_intermittent:
        return float(window_s.mean()) > MIN_RATIO * episode.base_s
    return float(np.median(window_s)) > episode.limit_s


def analyse(
    data: JobData, clock: StepClock, question: Question, clock_sigma_s: float
) -> Analysis | NotReplayed:
    """Return what made the window slow, or why its records cannot be replayed.

    Args:
        data: Telemetry on the aligned clock.
        clock: The job's step clock.
        question: Which steps, and their healthy history (empty compares ranks with each other).
        clock_sigma_s: Scatter of the aligned clocks.
    """
    keys = SlotKeys()
    history = None
    if question.history:
        first = question.history[0]
        numbers = tuple(clock.numbers[i] for i in question.history)
        history = build(data, numbers, float(clock.start_s[first]), keys)
    numbers = clock.numbers[question.start : question.stop]
    window = build(data, numbers, float(clock.start_s[question.start]), keys)
    if not window.lane_end:
        text = "no rank reported every step of the window"
        return NotReplayed((DataQuality(QualityCode.RANK_MISSING, text, None), *window.quality))
    if any(item.code == QualityCode.BAD_TIME for item in window.quality):
        return NotReplayed(window.quality)
    path = walk(window, clock_sigma_s)
    descent = descend(data, history, window, is_alone=question.is_alone)
    healthy_s = float(np.median(clock.step_s[list(question.history)])) if question.history else None
    usual = _usual_seconds(data, history)
    for key, crowd in descent.amounts.crowds.items():
        # In healthy steps it may not have stood in all ranks' way alike.
        usual[key] = usual.get(key, 0.0) + sum(usual.get(one, 0.0) for one in crowd.members)
    causes, amounts_s, path_s = _largest_causes(descent, window, path, healthy_s, usual)
    counterfactual = share_out(window, amounts_s)
    count = len(numbers)
    on_path = path_seconds(path, window) / np.maximum(window.work_s, 1e-12)
    path_excess_s = float((descent.excess_s * np.minimum(on_path, 1.0)).sum()) / count
    slack_s = path_excess_s - (counterfactual.simulated_s - counterfactual.ideal_s)
    return Analysis(
        window=window,
        history=history,
        path=path,
        waits=waits_by_culprit(window),
        history_waits=waits_by_culprit(history) if history is not None else None,
        causes=tuple(causes),
        cause_s=tuple(float(s) / count for s in amounts_s.sum(axis=0)[: len(causes)]),
        cause_path_s=tuple(float(s) / count for s in path_s),
        counterfactual=counterfactual,
        slack_s=max(slack_s, 0.0),
        amounts=descent.amounts,
        quality=window.quality,
    )


def _usual_seconds(data: JobData, history: StepGraph | None) -> dict[CauseKey, float]:
    """Return what each cause cost per healthy step on average, above the median of what it touched.

    Work that comes every so many steps (an evaluation, a log) is zero in the median and is there in the mean.
    """
    if history is None:
        return {}
    amounts = descend(data, history, history).amounts
    count = len(history.step_numbers)
    return {key: amounts.total_s(key) / count for key in amounts.values}


def _largest_causes(
    descent: Descent,
    window: StepGraph,
    path: Path,
    healthy_s: float | None,
    usual: dict[CauseKey, float],
) -> tuple[list[CauseKey], FloatArray, FloatArray]:
    """Return the causes worth replaying, their seconds per operation with the rest last, and those on the path."""
    count = len(window.step_numbers)
    step_s = healthy_s if healthy_s is not None else (window.end_s - window.start_s) / count
    amounts = descent.amounts
    totals = {key: amounts.total_s(key) / count for key in amounts.values}
    tried = [
        key
        for key in totals
        if abs(totals[key]) >= MIN_CAUSE_RATIO * step_s
        and totals[key] >= MIN_GROWTH * usual.get(key, 0.0)
    ]
    tried = sorted(tried, key=lambda key: (-abs(totals[key]), key.sort_key()))[:MAX_TRIED_CAUSES]
    nodes = window.kind.size
    columns = (
        np.stack([amounts.column(key, nodes) for key in tried], axis=1)
        if tried
        else np.zeros((nodes, 0))
    )
    occupied = np.minimum(path_seconds(path, window) / np.maximum(window.work_s, 1e-12), 1.0)
    on_path = occupied @ columns
    weight = np.maximum(removals(window, columns), on_path / count) if tried else np.zeros(0)
    order = sorted(
        range(len(tried)), key=lambda i: (-round(float(weight[i]), 9), tried[i].sort_key())
    )
    chosen = order[: MAX_EXACT_CAUSES - 1]
    kept = columns[:, chosen]
    rest = descent.excess_s - kept.sum(axis=1)
    rest[(window.kind != OpKind.EXEC) & (window.kind != OpKind.COLLECTIVE)] = 0.0
    return [tried[i] for i in chosen], np.hstack([kept, rest[:, None]]), on_path[chosen]
