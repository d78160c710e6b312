"""Find intermittent slowdowns: stretches in which single slow steps come clearly more often than before.

    step time   ____|__________|_______||_|_|||_||__|_|_________     some steps are slow at all times
                                       first      last spike         here they are many
    step time   ____|_______________________|______|_______|_____    or few, each of which takes several steps' time

Owns the sequential tests on the spikes of a series. What is slow throughout is `detect`'s.

Slow steps of a busy machine come in bursts. So the rate is that of beginnings: of steps after a quiet step, how many
are spikes. A spike after a spike says nothing, and a burst counts once however long it is.

Many spikes stand out from any history. Few stand out only from a history that is long enough to show how rare they
were: what is sought is the rate at which they cost what counts, and the history's own rate is taken to be as uncertain
as its length makes it.

Source:
    Method C3 for what a spike is. One-sided CUSUM tests of a Bernoulli rate (Page 1954; Reynolds and Stoumbos
    1999): the score of a step is its log-likelihood ratio of the higher rate to the history's own. Few spikes: the
    predictive (beta-binomial) distribution of their number, from the history by Laplace's rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray

# A spike lies this far above the base: so many robust sigmas, and at least so much of the base (method C3).
SPIKE_SIGMAS = 6.0
SPIKE_RATIO = 0.25
# The rate of many spikes: at least a quarter of the steps, and several times what history shows. A spike of +60 %
# makes the mean of a quarter of the steps 15 % higher. Rarer ones cost the 10 % that count where they are larger.
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
# A stretch of many is certain only where three of ten steps that follow a quiet one are spikes: five of them in 40
# steps come by chance in one healthy job of 500.
MIN_STRETCH_RATE = 0.3
# A stretch of few is certain where its history lets so many come this rarely. Every spike is tried as its first and as
# its last. Measured on 300 healthy jobs of 600 steps with 1 to 5 % of spikes or bursts, also heavy-tailed: 0 to 1 false
# stretches; with 1e-4 up to 8. One step of seven that takes four times as long, after 110 steps: within 50 to 90.
MAX_CHANCE = 1e-5
# Where the history has none as large, and they have cost more than a burst, as many may be less rare than that: who
# waits for the job sees them by then. Of 300 healthy jobs of 600 steps with 1 to 5 % of spikes or bursts, each of up to
# twelve steps' time, 0 to 7 have a false stretch, and had 0 to 5. One step of seven that takes four times as long is
# seen after 32 of them, and was after 59, where 130 steps had none (medians of 40 jobs).
MAX_COSTLY_CHANCE = 3e-4
# Mean of the stretch against the base, without its slowest step, which one long pause may be: what costs less is not
# claimed (method C3).
MIN_MEAN_RATIO = 1.10
# A burst of a healthy job costs less than so many healthy steps. Measured in healthy jobs of two ranks on two busy
# virtual CPUs: 3.1, 3.3 and 4.2, each on one rank or on all of them.
BURST_COST_STEPS = 10.0
# A spike that costs so many times as much as another one is of another kind.
LARGER = 2.0
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
            run = _follow_few(usual, position)
            stop = stop if run is None else run.stop or step_s.size
        if run is None:
            stop = usual.find_larger(position, stop)
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
        self.begins, self.chances = count_beginnings(step_s[self.healthy] > self.limit_s)

    def _measure(self) -> None:
        known = self.step_s[self.healthy[-self._max_history :]]
        self.base_s, self.limit_s = median(known), spike_limit_s(known)
        self._measured = len(self.healthy)

    def is_spike(self, position: int) -> bool:
        """Return whether a step stands out from the healthy ones."""
        return float(self.step_s[position]) > self.limit_s

    def find_larger(self, position: int, stop: int) -> int:
        """Return where a spike begins that is clearly larger than one at a position, `stop` where none does."""
        costs_s = self.step_s[position:stop] - self.base_s
        larger = np.flatnonzero(costs_s > LARGER * costs_s[0])
        return position + int(larger[0]) if larger.size else stop

    def admit(self, start: int, stop: int) -> None:
        """Count some steps as healthy, spikes among them too: that is how often they come."""
        begins, chances = count_beginnings(self.step_s[start:stop] > self.limit_s)
        self.begins, self.chances = self.begins + begins, self.chances + chances
        self.healthy.extend(range(start, stop))
        if len(self.healthy) - self._measured >= REMEASURE_STEPS:
            self._measure()

    @property
    def rate(self) -> float:
        """Part of healthy steps after a quiet one that are spikes; one more than was seen (Laplace's rule)."""
        return (self.begins + 1.0) / (self.chances + 2.0)


def count_beginnings(is_spike: BoolArray) -> tuple[int, int]:
    """Return how many spikes follow a quiet step, and how many steps do; what came before the first was quiet."""
    after_quiet = ~np.concatenate([[False], is_spike[:-1]])[: is_spike.size]
    return int((is_spike & after_quiet).sum()), int(after_quiet.sum())


def _follow(usual: _Usual, start: int) -> tuple[SpikeRun | None, int]:
    """Follow many spikes from one on; return the stretch that they make, if any, and where to go on looking."""
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
            stop = _end(is_spike, offset, usual_rate, max(MIN_RATE, RATE_RATIO * usual_rate))
            last = stop if stop is not None else is_spike.size
            values = usual.step_s[start : start + last]
            if _costs(values, usual.base_s):
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


def _follow_few(usual: _Usual, start: int) -> SpikeRun | None:
    """Follow few spikes from one on, each of which costs much; return the stretch that they make, if any.

    Those count that cost at least half as much as the first, in the history too: what it had of smaller ones says
    nothing of how often such come.
    """
    step_s = usual.step_s[start:]
    limit_s = max(usual.limit_s, usual.base_s + (float(step_s[0]) - usual.base_s) / LARGER)
    is_spike = step_s > limit_s
    known_begins, known_chances = usual.begins, usual.chances
    if limit_s > usual.limit_s:
        known_begins, known_chances = count_beginnings(usual.step_s[usual.healthy] > limit_s)
    usual_rate = (known_begins + 1.0) / (known_chances + 2.0)
    # As many as this one as cost what counts.
    costly = (MIN_MEAN_RATIO - 1.0) * usual.base_s / (float(step_s[0]) - usual.base_s)
    rate = min(max(min(costly, MIN_RATE), RATE_RATIO * usual_rate), MAX_RATE)
    for_spike, for_quiet = math.log(rate / usual_rate), math.log((1.0 - rate) / (1.0 - usual_rate))
    score, begins, chances, was_spike = 0.0, 0, 0, False
    for offset, spike in enumerate(is_spike.tolist()):
        if not was_spike:
            begins, chances = begins + spike, chances + 1
            score = min(score + (for_spike if spike else for_quiet), 2.0 * THRESHOLD)
        was_spike = spike
        if score <= 0.0:
            return None
        if not spike or begins < MIN_BEGINNINGS or not _costs(step_s[: offset + 1], usual.base_s):
            continue
        is_new = known_begins == 0 and _lost_s(step_s[: offset + 1], usual.base_s) >= (
            BURST_COST_STEPS * usual.base_s
        )
        limit = MAX_COSTLY_CHANCE if is_new else MAX_CHANCE
        if chance_of_many(begins, chances, known_begins, known_chances) >= limit:
            continue
        if _first(is_spike[: offset + 1], usual_rate) > 0:
            # A later spike began it, and is followed in its turn.
            return None
        stop = _end(is_spike, offset, usual_rate, rate)
        values = step_s[:stop]
        if not _costs(values, usual.base_s):
            continue
        # What began it is as slow as they are: a smaller one shortly before is the history's.
        level_s = median(values[is_spike[: values.size]])
        first = int(np.argmax(values > (usual.base_s + level_s) / 2.0))
        usual.admit(start, start + first)
        end = None if stop is None else start + stop
        return SpikeRun(start + first, end, usual.base_s, usual.limit_s, tuple(usual.healthy))
    return None


def _first(is_spike: BoolArray, usual_rate: float) -> int:
    """Return which spike most probably was the first of a stretch, as a position; the last one always is its last.

    Source:
        Maximum likelihood of a change to an unknown rate; the earliest where several are as likely.
    """
    begins = is_spike & ~np.concatenate([[False], is_spike[:-1]])
    starts = np.flatnonzero(begins)
    after_quiet = ~np.concatenate([[False], is_spike[:-1]])
    chances = np.cumsum(after_quiet[::-1])[::-1][starts].astype(np.float64)
    counts = np.arange(starts.size, 0, -1, dtype=np.float64)
    rates = np.minimum(counts / chances, MAX_RATE)
    likely = counts * np.log(rates / usual_rate)
    likely += (chances - counts) * np.log((1.0 - rates) / (1.0 - usual_rate))
    return int(starts[int(np.argmax(likely))])


def _costs(values: FloatArray, base_s: float) -> bool:
    """Return whether steps take so much longer that it counts, also without the slowest of them."""
    return _lost_s(values, base_s) >= (MIN_MEAN_RATIO - 1.0) * base_s * max(values.size - 1, 1)


def _lost_s(values: FloatArray, base_s: float) -> float:
    """Return how much longer steps took in all, without the slowest of them: one long pause is no stretch."""
    return float(values.sum() - values.max()) - base_s * (values.size - 1)


def chance_of_many(begins: int, chances: int, known_begins: int, known_chances: int) -> float:
    """Return how probably at least `begins` of `chances` steps begin a spike, from what history shows.

    Source:
        Predictive distribution of a Bernoulli rate with a uniform prior (beta-binomial).
    """
    spikes, quiet = known_begins + 1.0, known_chances - known_begins + 1.0
    if begins / chances <= spikes / (spikes + quiet):
        return 1.0
    left = chances - begins
    term = math.exp(
        math.lgamma(chances + 1.0)
        - math.lgamma(begins + 1.0)
        - math.lgamma(left + 1.0)
        + _log_beta(spikes + begins, quiet + left)
        - _log_beta(spikes, quiet)
    )
    total = term
    for count in range(begins, chances):
        # From so many to one more; far above the mean each is smaller than the one before.
        left = chances - count
        term *= left / (count + 1.0) * (spikes + count) / (quiet + left - 1.0)
        total += term
        if term < 1e-6 * total:
            break
    return total


def _log_beta(left: float, right: float) -> float:
    return math.lgamma(left) + math.lgamma(right) - math.lgamma(left + right)


def _end(is_spike: BoolArray, offset: int, usual_rate: float, lowest: float) -> int | None:
    """Return one past the last spike before the rate is the usual one again; None while it is not.

    Args:
        is_spike: From the first spike on.
        offset: Where the stretch was certain.
        usual_rate: Rate of the history.
        lowest: The rate that was looked for.
    """
    begins, chances = count_beginnings(is_spike[: offset + 1])
    last, score, was_spike = offset, 0.0, True
    for index in range(offset + 1, is_spike.size):
        spike = bool(is_spike[index])
        if not was_spike:
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
