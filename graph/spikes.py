"""Find intermittent slowdowns: stretches in which single slow steps come clearly more often than before.

    step time   ____|__________|_______||_|_|||_||__|_|_________     some steps are slow at all times
                                       first      last spike         here they are many

Owns the sequential test on the spikes of a series. What is slow throughout is `detect`'s.

Slow steps of a busy machine come in bursts. So the rate is that of beginnings: of steps after a quiet step, how many
are spikes. A spike after a spike says nothing, and a burst counts once however long it is.

Source:
    Method C3 for what a spike is. Two one-sided CUSUM tests of a Bernoulli rate (Page 1954; Reynolds and Stoumbos
    1999): the score of a step is its log-likelihood ratio of the higher rate to the history's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray

# A spike lies this far above the base: so many robust sigmas, and at least so much of the base (method C3).
SPIKE_SIGMAS = 6.0
SPIKE_RATIO = 0.25
# The rate that the test looks for: at least a quarter of the steps, and several times what history shows. A spike of
# +60 % makes the mean of a quarter of the steps 15 % higher; what is rarer hardly costs the 10 % that count.
MIN_RATE = 0.25
RATE_RATIO = 4.0
MAX_RATE = 0.9
# Both tests stop here. By Wald's bound a healthy job crosses it less than once in e^9 = 8,100 steps at the rate of its
# own history, which is known badly from few steps: hence the demands below. Measured on 4,000 healthy jobs of 150
# steps with 1 to 2 % of spikes or bursts: 0 to 1 false stretches; found at every second step for 60 steps: 99.8 %.
THRESHOLD = 9.0
# Fewer spikes or beginnings, or a shorter stretch, may be one burst of a busy machine.
MIN_SPIKES = 5
MIN_BEGINNINGS = 5
MIN_STEPS = 15
# A stretch is certain only where three of ten steps that follow a quiet one are spikes: five of them in 40 steps come
# by chance in one healthy job of 500.
MIN_STRETCH_RATE = 0.3
# Mean of the stretch against the base: what costs less is not claimed (method C3).
MIN_MEAN_RATIO = 1.10
# The base is taken anew after so many healthy steps: a median of fifty hardly moves with fewer.
REMEASURE_STEPS = 5
MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True)
class SpikeRun:
    """One intermittent stretch as positions: first spike, one past the last (None while it goes on), and its base.

    `limit_s` is the step time above which a step is a spike; `healthy` are the positions before the stretch.
    """

    start: int
    stop: int | None
    base_s: float
    limit_s: float
    healthy: tuple[int, ...]


def median(values: FloatArray) -> float:
    """Return the median of a few values, at least one; what numpy returns, in a fifth of its time."""
    ordered = np.sort(values)
    return float((ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2)


def spike_limit_s(history_s: FloatArray) -> float:
    """Return the step time above which a single step stands out from healthy ones, in seconds."""
    base_s = median(history_s)
    sigma_s = MAD_TO_SIGMA * median(np.abs(history_s - base_s))
    return base_s + max(SPIKE_SIGMAS * sigma_s, SPIKE_RATIO * base_s)


def find_spike_runs(
    step_s: FloatArray, first: int, min_history: int, max_history: int
) -> tuple[SpikeRun, ...]:
    """Return the intermittent stretches of a job in order.

    Args:
        step_s: Time of each step, (steps,), seconds.
        first: Position of the first step after the cold start.
        min_history: So many steps are healthy by definition.
        max_history: So many of the last healthy steps say what is usual.
    """
    usual = _Usual(step_s, first, min_history, max_history)
    runs: list[SpikeRun] = []
    position = first + min_history
    while position < step_s.size:
        if not usual.is_spike(position):
            usual.admit(position, position + 1)
            position += 1
            continue
        run, stop = _follow(usual, position)
        if run is None:
            usual.admit(position, stop)
        else:
            runs.append(run)
        position = stop
    return tuple(runs)


class _Usual:
    """What is usual so far: healthy steps, how slow a spike is, and how often one begins."""

    def __init__(self, step_s: FloatArray, first: int, min_history: int, max_history: int) -> None:
        self.step_s = step_s
        self.healthy = list(range(first, min(first + min_history, step_s.size)))
        self._max_history = max_history
        self._measure()
        self._begins, self._chances = count_beginnings(step_s[self.healthy] > self.limit_s)

    def _measure(self) -> None:
        known = self.step_s[self.healthy[-self._max_history :]]
        self.base_s, self.limit_s = median(known), spike_limit_s(known)
        self._measured = len(self.healthy)

    def is_spike(self, position: int) -> bool:
        """Return whether a step stands out from the healthy ones."""
        return float(self.step_s[position]) > self.limit_s

    def admit(self, start: int, stop: int) -> None:
        """Count some steps as healthy, spikes among them too: that is how often they come."""
        begins, chances = count_beginnings(self.step_s[start:stop] > self.limit_s)
        self._begins, self._chances = self._begins + begins, self._chances + chances
        self.healthy.extend(range(start, stop))
        if len(self.healthy) - self._measured >= REMEASURE_STEPS:
            self._measure()

    @property
    def rate(self) -> float:
        """Part of healthy steps after a quiet one that are spikes; one more than was seen (Laplace's rule)."""
        return (self._begins + 1.0) / (self._chances + 2.0)


def count_beginnings(is_spike: BoolArray) -> tuple[int, int]:
    """Return how many spikes follow a quiet step, and how many steps do; what came before the first was quiet."""
    after_quiet = ~np.concatenate([[False], is_spike[:-1]])[: is_spike.size]
    return int((is_spike & after_quiet).sum()), int(after_quiet.sum())


def _follow(usual: _Usual, start: int) -> tuple[SpikeRun | None, int]:
    """Follow the spikes from one on; return the stretch that they make, if any, and where to go on looking."""
    is_spike = usual.step_s[start:] > usual.limit_s
    usual_rate = usual.rate
    rate = min(max(MIN_RATE, RATE_RATIO * usual_rate), MAX_RATE)
    for_spike, for_quiet = math.log(rate / usual_rate), math.log((1.0 - rate) / (1.0 - usual_rate))
    score, was_spike = 0.0, False
    for offset, spike in enumerate(is_spike.tolist()):
        if not was_spike:
            # The cap keeps the memory of what was short.
            score = min(score + (for_spike if spike else for_quiet), 2.0 * THRESHOLD)
        was_spike = spike
        if score <= 0.0:
            return None, start + offset + 1
        if spike and score > THRESHOLD and _is_stretch(is_spike[: offset + 1]):
            stop = _end(is_spike, offset, usual_rate)
            last = stop if stop is not None else is_spike.size
            values = usual.step_s[start : start + last]
            if float(values.mean()) >= MIN_MEAN_RATIO * usual.base_s:
                end = None if stop is None else start + stop
                healthy = tuple(usual.healthy)
                return SpikeRun(start, end, usual.base_s, usual.limit_s, healthy), start + last
    return None, usual.step_s.size


def _is_stretch(is_spike: BoolArray) -> bool:
    """Return whether spikes are too many, too separate and too long a time for one burst."""
    begins, chances = count_beginnings(is_spike)
    return (
        int(is_spike.sum()) >= MIN_SPIKES
        and begins >= max(MIN_BEGINNINGS, MIN_STRETCH_RATE * chances)
        and is_spike.size >= MIN_STEPS
    )


def _end(is_spike: BoolArray, offset: int, usual_rate: float) -> int | None:
    """Return one past the last spike before the rate is the usual one again; None while it is not.

    Args:
        is_spike: From the first spike on.
        offset: Where the stretch was certain.
        usual_rate: Rate of the history.
    """
    begins, chances = count_beginnings(is_spike[: offset + 1])
    last, score, was_spike = offset, 0.0, True
    for index in range(offset + 1, is_spike.size):
        spike = bool(is_spike[index])
        if not was_spike:
            lowest = max(MIN_RATE, RATE_RATIO * usual_rate)
            rate = min(max(begins / chances, lowest), MAX_RATE)
            begins, chances = begins + spike, chances + 1
            if spike:
                score = max(score - math.log(rate / usual_rate), 0.0)
            else:
                score += math.log((1.0 - usual_rate) / (1.0 - rate))
        if spike and score <= 0.0:
            last = index
        was_spike = spike
        if score > THRESHOLD:
            return last + 1
    return None
