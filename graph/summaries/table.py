"""What each worker did, a row for each of its functions, and how far that is from its peers and its own past.

    share       seconds in the function over seconds of the steps
    mean        of one call, or of what a profile saw a second
    deviation   of the same

    distance = |share - other share| + |mean - other mean| + |deviation - other deviation|

The share as a part of the largest share, mean and deviation of the largest mean, of all that are compared.

Owns the distances; knows nothing of the store. A worker's peers are those of its stage that have the function, and what
it is held against is the middle of them, without itself: one bad worker must not move it.

Source:
    PerfTracker (arXiv 2506.08528): patterns of share, mean and deviation, compared between workers. That the
    deviation is held against the largest mean is ours: the noise of a function that is always short says nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from rootwalk.graph.align import MAD_TO_SIGMA
from rootwalk.graph.columns import BoolArray, FloatArray, IntArray

__all__ = [
    "FunctionKind",
    "Patterns",
    "StandsOut",
    "Summaries",
    "history_distance",
    "peer_distance",
]

# Functions below this part of the steps cannot slow a job that anybody would notice.
MIN_SHARE: Final = 0.01
# Nearer to its peers than this a worker is one of them: a tenth longer calls, and so a tenth larger share.
MIN_DISTANCE: Final = 0.2
# One that takes no longer than this part more than the middle of them does not hold them up, however it varies.
MIN_LONGER: Final = 0.05
# So many robust sigmas of its peers' own distances, and more where there are more, of whom one is always the farthest.
MIN_SIGMAS: Final = 5.0
# With fewer peers there is no telling who of them differs.
MIN_PEERS: Final = 3


class FunctionKind(StrEnum):
    """What a function is; a communication also waits for others, so that its victims stand out there."""

    OPERATION = "operation"
    COMMUNICATION = "communication"
    PHASE = "phase"
    ON_CPU = "on_cpu"
    OFF_CPU = "off_cpu"


@dataclass(frozen=True, slots=True)
class Patterns:
    """Share, mean and deviation of one row each, (rows,); NaN where a function was not called."""

    share: FloatArray
    mean: FloatArray
    deviation: FloatArray

    def take(self, rows: IntArray | BoolArray) -> Patterns:
        """Return chosen rows."""
        return Patterns(self.share[rows], self.mean[rows], self.deviation[rows])


@dataclass(frozen=True, slots=True)
class Summaries:
    """One row per rank and function, by rank, kind and name.

    Attributes:
        rank: Whose.
        stage: Of the pipeline, -1 where it is not known, (rows,).
        function: Index in `names`, (rows,).
        names: Kind and name of each function.
        calls: How many there were; of sampled functions, in how many profiles, (rows,).
        now: Of the window.
        before: Of as many steps before it, or fewer.
        raw_bytes_by_rank: Bytes of the records that were summed up, ids, times, names and attributes as they came.
    """

    rank: IntArray
    stage: IntArray
    function: IntArray
    names: tuple[tuple[FunctionKind, str], ...]
    calls: IntArray
    now: Patterns
    before: Patterns
    raw_bytes_by_rank: dict[int, int]

    @property
    def waits(self) -> BoolArray:
        """Which rows may have waited for other ranks: what they show is not their own."""
        waiting = (FunctionKind.COMMUNICATION, FunctionKind.OFF_CPU)
        return np.array([kind in waiting for kind, _ in self.names], dtype=np.bool_)[self.function]


@dataclass(frozen=True, slots=True)
class StandsOut:
    """How far each row is from the worker's peers, (rows,), NaN without any; and which stand out by that."""

    distance: FloatArray
    peers: IntArray
    is_out: BoolArray


def peer_distance(summaries: Summaries) -> StandsOut:
    """Return how far each row is from the same function of its peers.

    It stands out if it takes longer than the middle of them, and is farther from it than any of them is, by far.
    """
    rows = summaries.rank.size
    distance, peers = np.full(rows, np.nan), np.zeros(rows, dtype=np.int64)
    is_out = np.zeros(rows, dtype=np.bool_)
    known = np.flatnonzero(~np.isnan(summaries.now.share))
    places = np.stack([summaries.function[known], summaries.stage[known]])
    _, group = np.unique(places, axis=1, return_inverse=True)
    order = np.argsort(group, kind="stable")
    for members in np.split(known[order], np.flatnonzero(np.diff(group[order])) + 1):
        peers[members] = members.size - 1
        if members.size < 2:
            continue
        patterns = summaries.now.take(members)
        middles = _middle_of_others(patterns)
        largest = np.array([patterns.share.max()]), np.array([patterns.mean.max()])
        distance[members] = _distance(patterns, middles, *largest)
        if members.size > MIN_PEERS:
            longer = patterns.share - middles.share >= MIN_LONGER * patterns.share
            is_out[members] = longer & (patterns.share >= MIN_SHARE) & _far(distance[members])
    return StandsOut(distance, peers, is_out & ~summaries.waits)


def history_distance(summaries: Summaries) -> FloatArray:
    """Return how far each row is from the worker's own past, (rows,); NaN where there is none."""
    now, before = summaries.now, summaries.before
    return _distance(
        now, before, np.maximum(now.share, before.share), np.maximum(now.mean, before.mean)
    )


def _distance(
    patterns: Patterns, others: Patterns, share: FloatArray, mean: FloatArray
) -> FloatArray:
    """Return the sum of the differences, over the largest share and the largest mean that are compared."""
    mean_or_one = np.where(mean == 0.0, 1.0, mean)
    total = np.abs(patterns.share - others.share) / np.where(share == 0.0, 1.0, share)
    total += np.abs(patterns.mean - others.mean) / mean_or_one
    total += np.abs(patterns.deviation - others.deviation) / mean_or_one
    return np.asarray(total, dtype=np.float64)


def _middle_of_others(patterns: Patterns) -> Patterns:
    return Patterns(*(_medians_of_others(getattr(patterns, name)) for name in Patterns.__slots__))


def _medians_of_others(values: FloatArray) -> FloatArray:
    """Return for each value the median of the others.

    >>> _medians_of_others(np.array([1.0, 9.0, 2.0, 3.0])).tolist()
    [3.0, 2.0, 3.0, 2.0]
    """
    order = np.argsort(values, kind="stable")
    ordered, count = values[order], values.size - 1
    place = np.arange(values.size)

    def at(index: int) -> FloatArray:
        found: FloatArray = ordered[index + (place <= index)]
        return found

    result = np.empty_like(values)
    result[order] = (at((count - 1) // 2) + at(count // 2)) / 2.0
    return result


def _far(distance: FloatArray) -> BoolArray:
    """Return which members of a group are far from its middle, for how far its members usually are."""
    usual = _medians_of_others(distance)
    scatter = np.empty_like(distance)
    # Of all but one there are at most three different medians.
    for middle in np.unique(usual).tolist():
        scatter[usual == middle] = _medians_of_others(np.abs(distance - middle))[usual == middle]
    sigmas = MIN_SIGMAS + math.sqrt(2.0 * math.log(distance.size))
    limit = np.maximum(usual + sigmas * MAD_TO_SIGMA * scatter, MIN_DISTANCE)
    return np.asarray(distance >= limit, dtype=np.bool_)
