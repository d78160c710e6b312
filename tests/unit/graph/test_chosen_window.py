"""Steps that somebody names, or that the watcher asks about, inside of what detection has found."""

from __future__ import annotations

import numpy as np
import pytest

from rootwalk.graph.analysis import StepClock, choose_window, join_steps
from rootwalk.graph.counters.scene import find_spans
from rootwalk.graph.detect import find_episodes

ONSET = 77
FAULT_RATIO = 1.3


def job_of_two_moods(seed: int, steps: int) -> StepClock:
    """Return a job on a busy machine: ten steps of its history take longer, then a fault begins."""
    random = np.random.default_rng(seed)
    step_s = 0.28 * (1.0 + 0.06 * random.standard_normal(140))
    mood = int(random.integers(28, 45))
    step_s[mood : mood + 10] *= 1.15 + 0.15 * random.random()
    step_s[ONSET:] *= FAULT_RATIO + 0.3 * random.random()
    end_s = np.cumsum(step_s[:steps])
    return join_steps(np.arange(steps), end_s - step_s[:steps], end_s)


@pytest.mark.parametrize("steps", [120, 140])
def test_what_detection_calls_slow_is_slow_when_it_is_asked_about(steps: int) -> None:
    """Four steps of the bad mood more in the history once moved the limit above a fault, which nobody was told live."""
    asked = 0
    for seed in range(200):
        clock = job_of_two_moods(seed, steps)
        for episode in find_episodes(clock.step_s):
            if episode.stop is None:
                question = choose_window(clock, (episode.start, steps - 1))
                assert question is not None
                assert question.is_slow, (seed, episode)
                asked += 1
    assert asked >= 190


def test_steps_before_it_are_not_slow() -> None:
    clock = job_of_two_moods(3, 140)
    question = choose_window(clock, (50, 70))
    assert question is not None
    assert not question.is_slow


def test_quiet_steps_between_the_pauses_of_a_slowdown_are_no_history_of_a_counter() -> None:
    step_s = np.random.default_rng(1).normal(0.16, 0.005, 220)
    step_s[130::8] += 0.6
    end_s = np.cumsum(step_s)
    clock = join_steps(np.arange(220), end_s - step_s, end_s)
    question = choose_window(clock, (170, 219))
    assert question is not None
    assert question.is_slow
    spans = find_spans(clock, question)
    assert spans is not None
    assert spans.quiet > 50
    assert spans.end_s[spans.quiet - 1] <= end_s[129]
