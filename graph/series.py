"""Small robust statistics over (things, steps) arrays in which NaN means that a thing was absent.

Owns nothing but arithmetic. Results are NaN where nothing was present; no warning is ever raised.
"""

from __future__ import annotations

import math

import numpy as np

from rootwalk.graph.columns import FloatArray, IntArray

MAD_TO_SIGMA = 1.4826
# Scatter below this is the resolution of the records, not evidence of a change.
MIN_SIGMA_S = 2e-4


def scatter_sum(
    rows: IntArray, columns: IntArray, values: FloatArray, shape: tuple[int, int]
) -> FloatArray:
    """Return the sums of values by (row, column); NaN where nothing was present."""
    total = np.zeros(shape)
    seen = np.zeros(shape, dtype=np.bool_)
    np.add.at(total, (rows, columns), values)
    seen[rows, columns] = True
    total[~seen] = np.nan
    return total


def median_rows(values: FloatArray) -> FloatArray:
    """Return the median of each row without its NaN; shape (rows, ...) from (rows, steps, ...)."""
    ordered = np.sort(values, axis=1)
    count = np.sum(~np.isnan(values), axis=1)
    low = np.maximum((count - 1) // 2, 0)
    high = np.maximum(count // 2, 0)
    if values.shape[1] == 0:
        return np.full(values.shape[:1] + values.shape[2:], np.nan)
    high = np.minimum(high, values.shape[1] - 1)
    first = np.take_along_axis(ordered, low[:, None], axis=1)[:, 0]
    second = np.take_along_axis(ordered, high[:, None], axis=1)[:, 0]
    return np.asarray((first + second) / 2.0, dtype=np.float64)


def chance_of_at_most(most: int, draws: int, probability: float) -> float:
    """Return how probable it is that at most so many of the draws win (binomial), however many draws there are.

    Args:
        most: Of them; below 0 is never.
        draws: How often is drawn.
        probability: Of each to win, above 0 and below 1.
    """
    win, lose = math.log(probability), math.log1p(-probability)
    logs = (
        math.lgamma(draws + 1.0)
        - math.lgamma(won + 1.0)
        - math.lgamma(draws - won + 1.0)
        + won * win
        + (draws - won) * lose
        for won in range(min(most, draws) + 1)
    )
    return math.fsum(map(math.exp, logs))


def robust_z(value: float, history: FloatArray) -> float | None:
    """Return how many robust sigmas a value lies above the median of its history, None without one."""
    known = history[~np.isnan(history)]
    if known.size < 3:
        return None
    centre = float(np.median(known))
    sigma = max(MAD_TO_SIGMA * float(np.median(np.abs(known - centre))), MIN_SIGMA_S)
    return (value - centre) / sigma


def spearman(left: FloatArray, right: FloatArray) -> float | None:
    """Return the rank correlation of two series, None when one of them does not vary.

    Source:
        Spearman's rho with mean ranks for ties.
    """
    known = ~(np.isnan(left) | np.isnan(right))
    if known.sum() < 5:
        return None
    a, b = _mean_ranks(left[known]), _mean_ranks(right[known])
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0.0 else None


def _mean_ranks(values: FloatArray) -> FloatArray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[inverse], dtype=np.float64)
