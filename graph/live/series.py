"""The step clock of one running job as its ranks report: cheap detection on what is new.

    ranks report  0: 41 42 43      a step counts when every rank that was ever seen has ended it
                  1: 41 42         -> complete up to 42

Pure: rows in, slow episodes out. Keeps the last steps only, and looks for episodes only where a new step is slow or an
episode is open: while a job is healthy a look costs microseconds.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from rootwalk.graph.analysis import StepClock, join_steps
from rootwalk.graph.detect import MEDIAN_STEPS, Episode, find_episodes
from rootwalk.graph.live.track import EpisodeSpan

__all__ = ["KEPT_STEPS", "StepSeries"]

# Steps before an episode, or of a healthy job, that are kept: the rate of rare spikes is known from as many.
KEPT_STEPS = 300
# Healthy steps that are kept before the oldest go. Rarely, so that successive looks share their beginning: each new
# beginning is another chance for noise to look like an episode.
MAX_STEPS = 2 * KEPT_STEPS
# Of a longer episode the middle goes: only its beginning and its last steps say whether it goes on.
MAX_EPISODE_STEPS = 2000
# A step below this multiple of the usual one cannot begin an episode; detection claims 1.10 and more.
QUIET_RATIO = 1.08
# A slow step may complete an episode with the steps that follow it: two running medians.
RECENT_STEPS = 2 * MEDIAN_STEPS
USUAL_STEPS = 50
# New steps, at least so many, that took so many times the usual time even without the longest of them may be the
# beginning of an episode; one long step among them is what healthy jobs have.
SUSPECT_RATIO = 1.10
SUSPECT_STEPS = 3
_NS = 1e9


@dataclass(slots=True)
class _Step:
    """What is known of one step; Unix ns."""

    begin_ns: int
    end_ns: int
    ranks: set[int] = field(default_factory=set)


class StepSeries:
    """The last steps of one job and attempt.

    Args:
        first_new_step: Steps before it are history, whose durations `take_durations` does not give.
    """

    def __init__(self, first_new_step: int = 0) -> None:
        self._first_new_step = first_new_step
        self._ended_s: list[float] = []
        self._steps: dict[int, _Step] = {}
        self._ranks: set[int] = set()
        self._spans: tuple[EpisodeSpan, ...] = ()
        self._is_stale = False
        self._looked_at = -1
        self._is_suspect = False
        self._forgotten = 0

    def add(self, step: int, rank: int, start_ns: int, end_ns: int) -> None:
        """Enter one rank's step, Unix ns; entering it twice changes nothing."""
        if end_ns < start_ns:
            return
        self._ranks.add(rank)
        known = self._steps.setdefault(step, _Step(start_ns, end_ns))
        if rank not in known.ranks:
            known.ranks.add(rank)
            known.begin_ns = min(known.begin_ns, start_ns)
            known.end_ns = max(known.end_ns, end_ns)
            self._is_stale = True

    @property
    def last_step(self) -> int | None:
        """The last complete step, None before the first."""
        return max(self._complete(), default=None)

    @property
    def complete_steps(self) -> int:
        """How many steps were complete so far: those that were forgotten count."""
        return self._forgotten + len(self._complete())

    def find_spans(self, now_unix_ns: int) -> tuple[EpisodeSpan, ...]:
        """Return the slow episodes among the kept steps in order; `now_unix_ns` becomes their time of detection."""
        if not self._is_stale:
            self._is_suspect = False
            return self._spans
        self._is_stale = False
        origin_ns = min(step.begin_ns for step in self._steps.values())
        clock = self._clock(origin_ns)
        is_quiet = self._is_quiet(clock)
        self._is_suspect = not is_quiet and self._is_slow(clock)
        first = max(self._looked_at + 1, self._first_new_step)
        self._ended_s += clock.step_s[bisect_left(clock.numbers, first) :].tolist()
        self._looked_at = max(clock.numbers, default=-1)
        if not is_quiet:
            episodes = find_episodes(clock.step_s)
            self._spans = tuple(_span(clock, e, origin_ns, now_unix_ns) for e in episodes)
        spans = self._spans
        self._trim(clock.numbers)
        return spans

    @property
    def is_suspect(self) -> bool:
        """Whether what the last look found new was slow: a few steps more may show an episode."""
        return self._is_suspect

    def take_durations(self) -> list[float]:
        """Return how long the new steps took of which `find_spans` saw the end since the last call, seconds."""
        ended_s, self._ended_s = self._ended_s, []
        return ended_s

    def level_s(self) -> float | None:
        """Return the median of the last five steps, seconds; None while there are fewer."""
        numbers = heapq.nlargest(MEDIAN_STEPS + 1, self._complete())
        if len(numbers) <= MEDIAN_STEPS:
            return None
        ends = [self._steps[number].end_ns for number in numbers]
        times = sorted((late - early) / _NS for late, early in pairwise(ends))
        return times[MEDIAN_STEPS // 2]

    def slowest_step(self, first_step: int, last_step: int) -> int | None:
        """Return the step from first to last that took longest, None where none of them is kept."""
        if not self._steps:
            return None
        clock = self._clock(min(step.begin_ns for step in self._steps.values()))
        inside = [
            (float(s), number)
            for number, s in zip(clock.numbers, clock.step_s, strict=True)
            if first_step <= number <= last_step
        ]
        return max(inside)[1] if inside else None

    def _complete(self) -> list[int]:
        return [n for n, step in self._steps.items() if len(step.ranks) == len(self._ranks)]

    def _clock(self, origin_ns: int) -> StepClock:
        numbers = sorted(self._complete())
        steps = [self._steps[number] for number in numbers]
        return join_steps(
            np.array(numbers, dtype=np.int64),
            np.array([(s.begin_ns - origin_ns) / _NS for s in steps], dtype=np.float64),
            np.array([(s.end_ns - origin_ns) / _NS for s in steps], dtype=np.float64),
        )

    def _is_quiet(self, clock: StepClock) -> bool:
        """Return whether nothing can have begun or ended since the last look."""
        if any(span.is_open for span in self._spans):
            return False
        new = max(bisect_right(clock.numbers, self._looked_at) - RECENT_STEPS, 0)
        usual, recent = clock.step_s[max(new - USUAL_STEPS, 0) : new], clock.step_s[new:]
        return bool(usual.size) and bool((recent <= QUIET_RATIO * np.median(usual)).all())

    def _is_slow(self, clock: StepClock) -> bool:
        """Return whether the steps since the last look took longer than usual, also without the longest of them."""
        first_new = bisect_right(clock.numbers, self._looked_at)
        usual = clock.step_s[max(first_new - USUAL_STEPS, 0) : first_new]
        recent = clock.step_s[max(min(first_new, clock.step_s.size - SUSPECT_STEPS), 0) :]
        if usual.size <= MEDIAN_STEPS or recent.size < SUSPECT_STEPS:
            return False
        rest_s = (recent.sum() - recent.max()) / (recent.size - 1)
        return bool(rest_s >= SUSPECT_RATIO * np.median(usual))

    def _trim(self, numbers: tuple[int, ...]) -> None:
        """Forget what no later look needs; never a part of an episode: its slow steps would pass for the usual ones."""
        size = len(numbers)
        opened = [s.first_step for s in self._spans if s.is_open]
        if opened:
            start = bisect_left(numbers, min(opened))
            kept_from = start - KEPT_STEPS
            if size - start > MAX_EPISODE_STEPS:
                for number in numbers[start + KEPT_STEPS : size - KEPT_STEPS]:
                    del self._steps[number]
        elif size > MAX_STEPS:
            kept_from = size - KEPT_STEPS
            for span in reversed(self._spans):
                if bisect_left(numbers, span.last_step) + USUAL_STEPS > kept_from:
                    before = bisect_left(numbers, span.first_step) - USUAL_STEPS
                    kept_from = min(kept_from, before)
        else:
            return
        if kept_from > 0:
            first = numbers[kept_from]
            self._forgotten += kept_from
            self._steps = {n: step for n, step in self._steps.items() if n >= first}
            self._spans = tuple(s for s in self._spans if s.first_step >= first)


def _span(clock: StepClock, episode: Episode, origin_ns: int, now_unix_ns: int) -> EpisodeSpan:
    stop = len(clock.numbers) if episode.stop is None else episode.stop
    return EpisodeSpan(
        first_step=clock.numbers[episode.start],
        last_step=clock.numbers[stop - 1],
        is_open=episode.stop is None,
        onset_unix_ns=origin_ns + round(float(clock.start_s[episode.start]) * _NS),
        detected_unix_ns=now_unix_ns,
    )
