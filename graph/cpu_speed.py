"""Tell how much slower the CPUs of all ranks have become, by the same little work at the end of their steps.

    rank 0   16 us 16 17 16 | 30 31 30      1.9 times as long as before
    rank 1   16 us 16 16 17 | 29 30 29      1.8 times: what either of them runs takes so much longer, and is no more

Knows what all ranks have alike; that one CPU is slower than the others is a counter's to tell. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np

from rootwalk.graph.columns import FloatArray, ProbeRows

__all__ = [
    "ProbeTimes",
    "common_slowdown",
    "is_slow_in_turn",
    "probe_times",
    "slowed_part",
    "slower_than_peers",
    "times_of_all",
]

# So many healthy steps and slow ones say how fast a CPU was.
MIN_PROBES: Final = 5
# The same work takes more or less from step to step: a few percent, or half as much again while the other thread of the
# core works. A slower CPU is slower in the mean, by this part and so many standard errors at least.
MIN_SLOWDOWN: Final = 0.1
MIN_SIGMAS: Final = 4.0
# A look that was interrupted says no more than that it was slow.
MOST_TIMES: Final = 4.0
# Little work in the first cache and a model's do not slow down by the same factor: what it explains but for so much,
# it explains.
MIN_EXPLAINED: Final = 0.75
# Others run longer by this part of what the rank that stands out does, in such a part of their steps.
MIN_AS_MUCH: Final = 0.65
MIN_AS_SLOW: Final = 0.25


class ProbeTimes(NamedTuple):
    """What the work took in the mean of healthy steps and of the window, s; the standard error of the difference."""

    before_s: float
    now_s: float
    error_s: float

    @property
    def slowdown(self) -> float:
        """By which part it takes longer; 0.0 where that may be chance."""
        grown_s = self.now_s - self.before_s
        is_sure = grown_s >= max(MIN_SIGMAS * self.error_s, MIN_SLOWDOWN * self.before_s)
        return grown_s / self.before_s if is_sure else 0.0


def probe_times(
    probes: ProbeRows, rank: int, history: Collection[int], window: Collection[int]
) -> ProbeTimes | None:
    """Return what the work took a rank; None where few steps tell.

    Args:
        probes: What it took.
        rank: Of the job.
        history: Numbers of healthy steps.
        window: Numbers of the steps in question.
    """
    mine = probes.rank == rank
    before, now = (
        probes.probe_s[mine & np.isin(probes.step, list(steps))] for steps in (history, window)
    )
    if min(before.size, now.size) < MIN_PROBES:
        return None
    most_s = MOST_TIMES * float(np.median(before))
    before, now = np.minimum(before, most_s), np.minimum(now, most_s)
    error_s = math.sqrt(before.var() / before.size + now.var() / now.size)
    return ProbeTimes(float(before.mean()), float(now.mean()), error_s)


def times_of_all(
    probes: ProbeRows, ranks: Sequence[int], history: Collection[int], window: Collection[int]
) -> tuple[ProbeTimes, ...]:
    """Return what the work took each rank; nothing where that is not told of all of them. Arguments as above."""
    times = [probe_times(probes, rank, history, window) for rank in ranks if probes.step.size]
    told = tuple(one for one in times if one is not None)
    return told if len(told) == len(ranks) else ()


def slower_than_peers(
    probes: ProbeRows, rank: int, ranks: Sequence[int], window: Collection[int]
) -> float:
    """Return by which part the same work takes a rank longer than the fastest of its peers; 0.0 where few steps tell.

    Args:
        probes: What it took.
        rank: Of the job.
        ranks: All ranks of the window.
        window: Numbers of the steps in question.
    """
    inside = np.isin(probes.step, list(window))
    medians = {}
    for one in ranks:
        mine = probes.probe_s[inside & (probes.rank == one)]
        if mine.size >= MIN_PROBES:
            medians[one] = float(np.median(mine))
    others = [median_s for one, median_s in medians.items() if one != rank]
    if rank not in medians or not others:
        return 0.0
    return max(medians[rank] / min(others) - 1.0, 0.0)


def common_slowdown(times: Sequence[ProbeTimes]) -> float:
    """Return by which part the same work takes longer on every rank's CPU, 0.0 for no rank."""
    return min((one.slowdown for one in times), default=0.0)


def is_slow_in_turn(times: FloatArray, speeds: Sequence[ProbeTimes]) -> bool:
    """Return whether the rank that runs longer has a slower CPU, and others in many steps one that is as slow.

    Then the host lends less of its cores, now of one and now of another: nobody has more to do.

    Args:
        times: How many times as long as in a healthy step each rank ran in each step, (ranks, steps).
        speeds: What the little work took each rank; empty where that is not known.
    """
    if len(speeds) != len(times) or len(speeds) < 2:
        return False
    levels = np.median(times, axis=1) - 1.0
    longest = int(levels.argmax())
    if levels[longest] < MIN_SLOWDOWN or speeds[longest].slowdown <= 0.0:
        return False
    others = np.delete(times, longest, axis=0) - 1.0 >= MIN_AS_MUCH * levels[longest]
    return bool(others.mean() >= MIN_AS_SLOW)


def slowed_part(slowdown: float, usual_s: float, grown_s: float) -> float:
    """Return which part of a rank's longer running time is that its CPU is slower.

    Args:
        slowdown: By which part the same work takes longer.
        usual_s: How long it ran in as many healthy steps.
        grown_s: How much longer it ran.
    """
    if grown_s <= 0.0:
        return 0.0
    part = slowdown * usual_s / grown_s
    return 1.0 if part >= MIN_EXPLAINED else max(part, 0.0)
