"""The step clock of a running job: what is slow is seen as its steps come in, and what is over is forgotten.

A healthy step takes 100 ms, a slow one 160 ms; two ranks report each.
"""

from __future__ import annotations

import numpy as np
import pytest

from rootwalk.graph.detect import find_episodes
from rootwalk.graph.live.series import KEPT_STEPS, MAX_EPISODE_STEPS, MAX_STEPS, StepSeries

NS = 1_000_000_000
HEALTHY_S, SLOW_S = 0.100, 0.160


class Reporter:
    """Reports steps of given length one after the other."""

    def __init__(self, jitter_ratio: float = 0.0, seed: int = 1) -> None:
        self.series = StepSeries()
        self.step = 0
        self.end_ns = NS
        self.times_s: list[float] = []
        self._random = np.random.default_rng(seed)
        self._jitter_ratio = jitter_ratio

    def report(self, step_s: float, ranks: tuple[int, ...] = (0, 1)) -> None:
        took_s = step_s * (1.0 + self._jitter_ratio * float(self._random.uniform(-1, 1)))
        self.times_s.append(took_s)
        begin_ns, self.end_ns = self.end_ns, self.end_ns + round(took_s * NS)
        for rank in ranks:
            self.series.add(self.step, rank, begin_ns, self.end_ns)
        self.step += 1

    def run(
        self, count: int, step_s: float = HEALTHY_S, every: int = 1
    ) -> list[tuple[int, int, bool]]:
        """Report steps, looking after every so many and at the end; return the episodes as last seen."""
        for index in range(count):
            self.report(step_s)
            if (index + 1) % every == 0:
                self.series.find_spans(self.step)
        spans = self.series.find_spans(self.step)
        return [(s.first_step, s.last_step, s.is_open) for s in spans]


def test_an_episode_is_seen_at_its_fifth_slow_step() -> None:
    reporter = Reporter()
    assert reporter.run(60) == []
    assert reporter.run(4, SLOW_S) == []
    assert reporter.run(1, SLOW_S) == [(60, 64, True)]
    (span,) = reporter.series.find_spans(999)
    # sixty steps of 100 ms since 1 s
    assert span.onset_unix_ns == 7 * NS
    assert span.detected_unix_ns == 65


def test_an_episode_ends_when_steps_are_quick_again() -> None:
    reporter = Reporter()
    reporter.run(60)
    reporter.run(20, SLOW_S)
    assert reporter.run(2) == [(60, 81, True)]
    assert reporter.run(3) == [(60, 79, False)]


def test_a_look_agrees_with_detection_over_the_whole_job() -> None:
    reporter = Reporter(jitter_ratio=0.05)
    reporter.run(100)
    reporter.run(30, SLOW_S)
    seen = reporter.run(60)

    whole = find_episodes(np.array(reporter.times_s))
    assert seen == [(e.start, (e.stop or 0) - 1, False) for e in whole]
    assert len(whole) == 1


def test_a_step_counts_when_every_rank_has_ended_it() -> None:
    series = StepSeries()
    series.add(0, 0, 0, 100)
    series.add(0, 1, 0, 120)
    series.add(1, 0, 120, 300)
    assert series.last_step == 0
    series.add(1, 1, 120, 310)
    series.add(1, 1, 120, 310)
    assert series.last_step == 1
    assert series.slowest_step(0, 5) == 1
    assert series.slowest_step(2, 5) is None


def test_each_new_step_is_timed_once() -> None:
    series = StepSeries(first_new_step=1)
    for step in range(3):
        series.add(step, 0, 100 * step, 100 * step + 100)
    series.find_spans(1)
    assert series.take_durations() == pytest.approx([1e-7, 1e-7])  # step 0 is history
    series.add(3, 0, 300, 450)
    series.find_spans(2)
    assert series.take_durations() == pytest.approx([1.5e-7])
    assert series.take_durations() == []


def test_a_step_that_ends_before_it_starts_is_left_out() -> None:
    series = StepSeries()
    series.add(0, 0, 100, 90)
    assert series.last_step is None
    assert series.find_spans(1) == ()


def test_a_long_healthy_job_keeps_its_last_steps_and_stays_healthy() -> None:
    reporter = Reporter(jitter_ratio=0.05)
    for _ in range(5):
        assert reporter.run(MAX_STEPS) == []
    assert len(reporter.series._steps) <= MAX_STEPS
    assert len(reporter.series._steps) >= KEPT_STEPS


def test_a_very_long_episode_is_still_open_and_still_ends() -> None:
    reporter = Reporter()
    reporter.run(100)
    seen = reporter.run(MAX_EPISODE_STEPS + 500, SLOW_S, every=250)
    assert seen == [(100, reporter.step - 1, True)]
    assert len(reporter.series._steps) <= MAX_EPISODE_STEPS + 2 * KEPT_STEPS
    last_slow = reporter.step - 1
    assert reporter.run(10) == [(100, last_slow, False)]


def test_an_episode_is_not_cut_in_half_when_old_steps_go() -> None:
    reporter = Reporter()
    reporter.run(250)
    reporter.run(100, SLOW_S, every=50)
    # At 600 steps the first 300 would go, and with them half of what was slow from 250 to 349.
    seen = reporter.run(MAX_STEPS - 350 + 5)
    assert seen == [(250, 349, False)]
    assert reporter.run(1, SLOW_S) == [(250, 349, False)]


def look_at(reporter: Reporter, step_s: list[float]) -> bool:
    """Return whether such steps, found new by one look, are suspect."""
    for took_s in step_s:
        reporter.report(took_s)
    assert reporter.series.find_spans(reporter.step) == ()
    return reporter.series.is_suspect


@pytest.mark.parametrize(
    ("step_s", "is_suspect"),
    [
        ([HEALTHY_S] * 40, False),
        # a link that flaps: two pauses are suspect, one is what healthy jobs have
        ([*[HEALTHY_S] * 14, 0.7, *[HEALTHY_S] * 14, 0.7, *[HEALTHY_S] * 4], True),
        ([*[HEALTHY_S] * 14, 0.7, *[HEALTHY_S] * 19], False),
        # the last steps of a batch
        ([*[HEALTHY_S] * 4, *[SLOW_S] * 3], True),
        ([SLOW_S, SLOW_S], True),
        ([SLOW_S], False),
    ],
)
def test_new_steps_are_suspect_that_were_slow_without_the_longest(
    step_s: list[float], is_suspect: bool
) -> None:
    reporter = Reporter()
    reporter.run(60)
    assert look_at(reporter, step_s) == is_suspect


def test_a_suspicion_is_that_of_the_last_look() -> None:
    reporter = Reporter()
    reporter.run(60)
    assert look_at(reporter, [SLOW_S] * 3)
    assert not look_at(reporter, [])
    assert not look_at(reporter, [HEALTHY_S] * 10)


def test_the_first_steps_of_a_job_are_not_suspect() -> None:
    reporter = Reporter()
    reporter.run(4)
    assert not look_at(reporter, [SLOW_S] * 3)
