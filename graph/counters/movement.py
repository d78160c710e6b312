"""How one counter moved in the slow steps and before them: how much, in which of them, and with what dose.

    points      0 ........ 0   7   14  21        a sum that stands still is sent once a minute: what came in between
    growth      ___________|~~~|~~~|~~~|         came in the last look
    steps       |__|__|__|__|____|____|____|     each gets its part of the growth

Pure. Times are seconds on the aligned clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray
from rootwalk.graph.counters.rule import Kind
from rootwalk.graph.series import MAD_TO_SIGMA, spearman

__all__ = [
    "Movement",
    "Points",
    "StepSpans",
    "arisen",
    "levels",
    "met_onset",
    "reached",
    "since_nothing",
    "sums",
    "watch",
]

# Our agents look every 2 s, send every 5 s, and send what stands still once a minute.
LOOK_S = 7.0
REPEAT_S = 60.0
# A sum moves in a step in which it grows at least this many times as fast as before, a level where it is this worse.
MOVED_TIMES = 2.0
MOVED_RATIO = 0.05
ROUND_TRIP_RATIO = 0.5
# Sums that we send are as they were at the last look: of what grows evenly, 4 s or 6 s lie between two of them. A step
# has more where it has so much more than before, and is nearer to the slow steps than to the healthy ones.
LOOKS_RATIO = 0.5
# A part of another sum moves from this much more of it on.
MOVED_PART = 0.02
# Of what every step has some, a step has more from so many robust sigmas on.
MOVED_SIGMAS = 3.0
# Between two looks a level is drawn as a line, and one look may meet a moment: a level has moved where it is nearer to
# what it came to than to what it was.
HALF_WAY = 0.5
# A sum that came to ten times as much had not moved when it was twice as much for a while, as when a job has begun.
QUARTER_WAY = 0.25
# What work takes is looked at for a moment of each step: so many of them are taken together.
MOMENTS = 9
# A level stands still within this part of what it was.
STEADY_RATIO = 0.02
# Levels that are worse where they are higher, and what is no sum that a step has its own part of.
_RISING = (Kind.RISE, Kind.COUNT, Kind.LONGER)
_AS_IT_IS = frozenset(
    (*_RISING, Kind.FALL, Kind.SINCE, Kind.MORE, Kind.LOOKS, Kind.STEADY, Kind.EVEN)
)
# A sum is judged by what it did in so many slow steps at least.
FEWEST_TOLD = 5
# What moves in the last healthy steps before the slow ones costs nothing, however long it stood still before.
RECENT_STEPS = 20


@dataclass(frozen=True, slots=True)
class Points:
    """One series of a metric: points in order of time; `is_thinned` when what stands still is left out."""

    time_s: FloatArray
    value: FloatArray
    is_thinned: bool


@dataclass(frozen=True, slots=True)
class StepSpans:
    """The healthy steps that a counter is compared with, and then the slow ones; `quiet` of the first kind."""

    start_s: FloatArray
    end_s: FloatArray
    quiet: int

    @property
    def step_s(self) -> FloatArray:
        """Time of each step."""
        return self.end_s - self.start_s

    def guarded(self, guard_s: float) -> StepSpans:
        """Return the steps without the healthy ones of the last seconds before the slow ones."""
        return self.chosen(self.end_s <= self.start_s[self.quiet] - guard_s)

    def told(self, series: Sequence[Points]) -> StepSpans:
        """Return the steps without the slow ones of which the last look at sums is still to come.

        What is older than a look would have been told had it moved. Where hardly any step is left, all of them stay.
        """
        last_s = max((float(one.time_s[-1]) for one in series if one.time_s.size), default=-np.inf)
        slow_end_s = self.end_s[self.quiet :]
        count = int(np.searchsorted(slow_end_s, last_s, side="right"))
        if count < FEWEST_TOLD or slow_end_s[-1] - last_s > LOOK_S:
            return self
        stop = self.quiet + count
        return StepSpans(self.start_s[:stop], self.end_s[:stop], self.quiet)

    def chosen(self, is_chosen: BoolArray) -> StepSpans:
        """Return the steps without the healthy ones that are not chosen."""
        kept = np.flatnonzero(is_chosen[: self.quiet])
        positions = np.concatenate([kept, np.arange(self.quiet, self.start_s.size)])
        return StepSpans(self.start_s[positions], self.end_s[positions], int(kept.size))


@dataclass(frozen=True, slots=True)
class Movement:
    """What a counter did.

    `value` and `history` are means per step (levels: means) in its unit; `growth` and `ratio` as `formulas` takes them;
    `z` is in robust sigmas of its own history; `overlap` the part of the lost time that lies in steps in which it
    moved, `outside` the part of the healthy steps in which it did, or of the last of them; `dose` its rank correlation
    with the step time over all of them, each with those beside it; `late_s` is how long after the first slow step it
    first moved. `settled` is the ratio of the slow step in the middle: what a level came to, though the look that saw
    it came late.
    """

    value: float
    history: float
    growth: float
    ratio: float
    z: float
    overlap: float
    outside: float
    dose: float | None
    late_s: float
    settled: float = 0.0


def sums(series: Sequence[Points], spans: StepSpans) -> FloatArray | None:
    """Return by how much sums grew in each step, together; None where fewer than two points are known.

    A sum that falls has begun again: what it has then is its growth.
    """
    stairs = [_staircase(one) for one in series if one.time_s.size >= 2]
    if not stairs:
        return None
    grown = [np.interp(spans.end_s, *one) - np.interp(spans.start_s, *one) for one in stairs]
    return np.asarray(np.sum(grown, axis=0), dtype=np.float64)


def met_onset(series: Sequence[Points], spans: StepSpans) -> float:
    """Return when the look began that met the first slow step: what healthy steps since then have, may be of slow ones.

    Where no look of any sum met it, that is the first slow step's begin.
    """
    onset_s = float(spans.start_s[spans.quiet]) if spans.quiet < spans.start_s.size else np.inf
    since_s = onset_s
    for one in series:
        if one.time_s.size >= 2:
            times, _ = _staircase(one)
            begin, end = times[::2], times[1::2]
            met = begin[(begin < onset_s) & (end > onset_s)]
            since_s = min([since_s, *met.tolist()])
    return since_s


def reached(series: Sequence[Points], spans: StepSpans) -> FloatArray | None:
    """Return by how much sums had grown since the first of the steps, by the end of each; None as in `sums`."""
    stairs = [_staircase(one) for one in series if one.time_s.size >= 2]
    if not stairs:
        return None
    grown = [np.interp(spans.end_s, *one) - np.interp(spans.start_s[0], *one) for one in stairs]
    return np.asarray(np.sum(grown, axis=0), dtype=np.float64)


def since_nothing(series: Sequence[Points], told: Sequence[Points]) -> list[Points]:
    """Return sums that were 0 until their first points, from the first point of any that is told with them.

    Args:
        series: The sums, each told only once there is something of it.
        told: What the same sensor tells of the same place, the sums among it.
    """
    first_s = min((float(one.time_s[0]) for one in told if one.time_s.size), default=np.inf)
    return [
        Points(np.append(first_s, one.time_s), np.append(0.0, one.value), one.is_thinned)
        if one.time_s.size and one.time_s[0] > first_s
        else one
        for one in series
    ]


def _staircase(one: Points) -> tuple[FloatArray, FloatArray]:
    """Return times and heights of a sum: flat where nothing came, rising in the look that found it."""
    grown = np.diff(one.value)
    grown = np.where(grown < 0.0, one.value[1:], grown)
    begin, end = one.time_s[:-1], one.time_s[1:]
    if one.is_thinned:
        begin = np.maximum(begin, end - LOOK_S)
    after = np.cumsum(grown)
    times = np.stack([begin, end], axis=1).ravel()
    return times, np.stack([after - grown, after], axis=1).ravel()


def levels(series: Sequence[Points], spans: StepSpans) -> FloatArray | None:
    """Return the level in each step, the mean over series; None where no point is known."""
    middle = (spans.start_s + spans.end_s) / 2.0
    found = []
    for one in series:
        if not one.time_s.size:
            continue
        times, values = one.time_s, one.value
        if one.is_thinned and times.size > 1:
            # What was left out was what had been sent last.
            held = np.maximum(times[:-1], times[1:] - LOOK_S)
            times = np.concatenate([times[:1], np.stack([held, times[1:]], axis=1).ravel()])
            values = np.concatenate(
                [values[:1], np.stack([values[:-1], values[1:]], axis=1).ravel()]
            )
        found.append(np.interp(middle, times, values))
    return np.mean(found, axis=0) if found else None


def watch(
    kind: Kind,
    amount: FloatArray,
    spans: StepSpans,
    over: FloatArray | None = None,
    known_until_s: float = np.inf,
) -> Movement | None:
    """Return how a counter moved, None where it has no history to be held against.

    Args:
        kind: What is wrong with it.
        amount: Growth in each step, its level there, or (SINCE) what it had grown to by then.
        spans: The steps.
        over: Growth of what a PART is a part of.
        known_until_s: From then on healthy steps may have what came in slow ones (`met_onset`).
    """
    quiet, slow = slice(0, spans.quiet), slice(spans.quiet, None)
    if not spans.quiet or spans.quiet == amount.size:
        return None
    if kind is Kind.PART and over is not None:
        series = np.where(over > 0.0, amount / np.where(over > 0.0, over, 1.0), 0.0)
    elif kind in _AS_IT_IS:
        series = _middles(amount) if kind is Kind.LONGER else amount
    else:
        series = amount / np.maximum(spans.step_s, 1e-9)
    settled: float | None = None
    before = float(np.median(series[quiet]))
    mean_before, mean_now = float(series[quiet].mean()), float(series[slow].mean())
    if kind in (Kind.STEADY, Kind.EVEN):
        return _steadiness(before, mean_now)
    if kind in (*_RISING, Kind.FALL, Kind.DROP):
        is_rising = kind in _RISING
        if before <= 0.0 or (mean_now <= 0.0 and is_rising):
            return None
        mean_now = max(mean_now, 1e-12 * before)
        worse = series / before - 1.0 if is_rising else before / np.maximum(series, 1e-12) - 1.0
        ratio = mean_now / before - 1.0 if is_rising else before / mean_now - 1.0
        settled = float(np.median(worse[slow]))
        limit = ROUND_TRIP_RATIO if kind is Kind.RISE else MOVED_RATIO
        way = HALF_WAY * abs(float(np.median(series[slow])) - before)
        moved = (worse >= limit) & (np.abs(series - before) >= way)
        growth = float(amount[slow].mean()) - before
    elif kind is Kind.PART:
        moved, growth, ratio = series >= mean_before + MOVED_PART, mean_now - mean_before, 0.0
    elif kind is Kind.LOOKS:
        moved = series > max(mean_before * (1.0 + LOOKS_RATIO), (mean_before + mean_now) / 2.0)
        growth = mean_now - mean_before
        ratio = growth / mean_before if mean_before > 0.0 else 0.0
    elif kind is Kind.MORE:
        scatter = MAD_TO_SIGMA * float(np.median(np.abs(series[quiet] - before)))
        moved = series > before + max(MOVED_RATIO * before, MOVED_SIGMAS * scatter)
        # Where it has changed on the way, so far that its scatter hides it, there was the more of the two before.
        growth = mean_now - max(mean_before, float(np.median(series[quiet][-RECENT_STEPS:])))
        ratio = growth / mean_before if mean_before > 0.0 else 0.0
    else:
        moved = series > max(
            MOVED_TIMES * mean_before, mean_before + QUARTER_WAY * (mean_now - mean_before)
        )
        growth, ratio = float(amount[slow].mean() - amount[quiet].mean()), 0.0
    settled = ratio if settled is None else settled
    usual_s = float(np.median(spans.step_s[quiet]))
    lost_s = np.maximum(spans.step_s[slow] - usual_s, 0.0)
    lost_in_all_s = float(lost_s.sum())
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(series[quiet] - before)))
    # What moved in a step that took long as well does not say that it costs nothing.
    long_s = usual_s + HALF_WAY * float(lost_s.mean())
    is_usual = spans.step_s[quiet] <= long_s
    before_it = moved[quiet][is_usual & (spans.end_s[quiet] <= known_until_s)]
    outside = max(before_it.mean(), before_it[-RECENT_STEPS:].mean()) if before_it.size else 0.0
    first = np.flatnonzero(moved[slow])
    late_s = float(spans.start_s[slow][first[0]] - spans.start_s[slow][0]) if first.size else np.inf
    sigma = max(sigma, 0.01 * abs(before), 1e-9)
    return Movement(
        value=float(amount[slow].mean()),
        history=float(amount[quiet].mean()),
        growth=growth,
        ratio=ratio,
        z=float(np.clip((mean_now - before) / sigma, -1e3, 1e3)),
        overlap=float(lost_s[moved[slow]].sum()) / lost_in_all_s if lost_in_all_s > 0.0 else 0.0,
        outside=float(outside),
        dose=_dose(-series if kind is Kind.FALL else series, spans),
        late_s=late_s,
        settled=settled,
    )


def _middles(values: FloatArray) -> FloatArray:
    """Return the middle of each value and those beside it: a moment that was looked at may have been any."""
    beside = np.pad(values, MOMENTS // 2, mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(beside, MOMENTS)
    return np.asarray(np.median(around, axis=1), dtype=np.float64)


def _dose(series: FloatArray, spans: StepSpans) -> float | None:
    """Return the rank correlation of what each step has with the time of the steps, both over the length of a look.

    Steps between two looks have one and the same rate, be some of them slow and the others not, as where what is lost
    on a link costs a timeout now and then.
    """
    middle = (spans.start_s + spans.end_s) / 2.0
    first = np.searchsorted(middle, middle - LOOK_S / 2.0)
    stop = np.searchsorted(middle, middle + LOOK_S / 2.0, side="right")

    def over_look(values: FloatArray) -> FloatArray:
        reached_by = np.concatenate([[0.0], np.cumsum(values)])
        mean = (reached_by[stop] - reached_by[first]) / (stop - first)
        return np.asarray(mean, dtype=np.float64)

    return spearman(over_look(series), over_look(spans.step_s))


def arisen(series: Sequence[Points], spans: StepSpans) -> Movement | None:
    """Return the movement of a level that was nothing when last told, and then was not, at about the first slow step.

    What it was long before does not count: a mask may be set when a job has begun. It has to stay in the slow steps.
    """
    if len(series) != 1:
        return None
    times, values = series[0].time_s, series[0].value
    onset_s, end_s = float(spans.start_s[spans.quiet]), float(spans.end_s[-1])
    since = int(np.searchsorted(times, onset_s - LOOK_S))
    stop = int(np.searchsorted(times, end_s, side="right"))
    risen = [i for i in range(max(since, 1), stop) if values[i] > 0.0 >= values[i - 1]]
    if not risen or (values[risen[-1] : stop] <= 0.0).any():
        return None
    told_s, value = float(times[risen[-1]]), float(values[stop - 1])
    slow = slice(spans.quiet, None)
    step_s = spans.step_s
    lost_s = np.maximum(step_s[slow] - float(np.median(step_s[: spans.quiet])), 0.0)
    total_s = float(lost_s.sum())
    there_s = float(lost_s[spans.end_s[slow] >= told_s].sum())
    overlap = there_s / total_s if total_s > 0.0 else 0.0
    late_s = max(told_s - onset_s, 0.0)
    return Movement(value, 0.0, value, 0.0, 0.0, overlap, 0.0, dose=None, late_s=late_s)


def _steadiness(before: float, now: float) -> Movement | None:
    """Return the movement of what is as much in all of the steps alike; None where it is not, or nothing at all."""
    if before <= 0.0 or abs(now / before - 1.0) > STEADY_RATIO:
        return None
    return Movement(now, before, 0.0, 0.0, 0.0, overlap=1.0, outside=0.0, dose=None, late_s=0.0)
