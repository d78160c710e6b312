"""Intervals of time as arrays: what they cover together, and what of it falls in another interval. Nanoseconds."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

__all__ = ["Cover", "Starts", "as_pairs", "as_rows"]

IntArray = npt.NDArray[np.int64]


def as_rows(values: array[int], width: int) -> IntArray:
    """Return numbers that were appended one after the other, (rows, width), without a copy: no more can be appended."""
    if not len(values):
        return np.zeros((0, width), dtype=np.int64)
    return np.frombuffer(values, dtype=np.int64).reshape(-1, width)


def as_pairs(values: array[int]) -> IntArray:
    """Return (start, end) pairs that were appended one after the other, (intervals, 2), by their start."""
    pairs = np.array(values, dtype=np.int64).reshape(-1, 2)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


class Cover:
    """The union of intervals.

    Args:
        pairs: (intervals, 2) in the order of their starts; they may overlap.
    """

    def __init__(self, pairs: IntArray) -> None:
        reached = np.maximum.accumulate(pairs[:, 1]) if len(pairs) else pairs[:, 1]
        begins = np.ones(len(pairs), dtype=np.bool_)
        begins[1:] = pairs[1:, 0] > reached[:-1]
        first = np.flatnonzero(begins)
        self.starts: IntArray = pairs[first, 0]
        self.ends: IntArray = (
            reached[np.append(first[1:] - 1, len(pairs) - 1)] if len(pairs) else reached
        )
        self._before = np.concatenate([[0], np.cumsum(self.ends - self.starts)])

    def within(self, low: int, high: int) -> int:
        """Return how much of [low, high) is covered."""
        return self._until(high) - self._until(low) if high > low else 0

    def each_within(self, lows: IntArray, highs: IntArray) -> IntArray:
        """Return how much of each [low, high) is covered; nothing of those that end before they begin."""
        covered: IntArray = np.maximum(self._each_until(highs) - self._each_until(lows), 0)
        return covered

    def _each_until(self, times: IntArray) -> IntArray:
        if not len(self.starts):
            return np.zeros(len(times), dtype=np.int64)
        index = np.searchsorted(self.starts, times)
        over = np.maximum(self.ends[np.maximum(index - 1, 0)] - times, 0)
        return np.asarray(np.where(index > 0, self._before[index] - over, 0), dtype=np.int64)

    def _until(self, time: int) -> int:
        """Return how much is covered before a time."""
        index = int(np.searchsorted(self.starts, time))
        if not index:
            return 0
        over = max(int(self.ends[index - 1]) - time, 0)
        return int(self._before[index]) - over


class Starts:
    """Intervals by when they began.

    Args:
        pairs: (intervals, 2) in the order of their starts.
    """

    def __init__(self, pairs: IntArray) -> None:
        self._starts = pairs[:, 0]
        self._before = np.concatenate([[0], np.cumsum(pairs[:, 1] - pairs[:, 0])])

    def bounds(self, low: int, high: int) -> tuple[int, int]:
        """Return the first interval that begins in [low, high), and the first after it."""
        first, stop = np.searchsorted(self._starts, [low, max(high, low)])
        return int(first), int(stop)

    def within(self, low: int, high: int) -> int:
        """Return how long those that begin in [low, high) are together."""
        first, stop = self.bounds(low, high)
        return int(self._before[stop] - self._before[first])
