"""How far each place is from its peers and from its own past, by medians; and when the work fell. Pure arrays.

    scatter = max(1.4826 x median of absolute deviations, the rule's scatter, 2 % of the median)
    score   = deviation / scatter, positive where it is bad; from 6 on something stands out

Median and MAD as in BARO's score (method C1, C8), whose IQR is the MAD here: half of the places may be bad.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.columns import FloatArray

__all__ = [
    "MIN_PAST_BINS",
    "MIN_PLACES",
    "Z_LIMIT",
    "Episode",
    "Score",
    "find_episode",
    "middle",
    "score",
]

# As the noise limit of steps (`detect`): six robust standard deviations.
Z_LIMIT: Final = 6.0
# Of the size of what is measured, so much is usual spread between places and times: 12 % stand out.
MIN_SCATTER_RATIO: Final = 0.02
# With three peers the median is theirs whatever one of the four does.
MIN_PLACES: Final = 4
# A past is at least so long, and a fall.
MIN_PAST_BINS: Final = 5
MIN_LOW_BINS: Final = 3
# The work fell if it fell by a tenth (method C3).
MIN_FALL_RATIO: Final = 0.10
_SIGMA: Final = 1.4826
# Standard error of a median of n numbers, in parts of their standard deviation over the root of n.
_MEDIAN_ERROR: Final = 1.2533


@dataclass(frozen=True, slots=True)
class Episode:
    """Bins of a fall: `stop` is exclusive, None while it goes on."""

    start: int
    stop: int | None


@dataclass(frozen=True, slots=True)
class Score:
    """Each place over one window; arrays over places, NaN where it cannot be known.

    `z` is by which it is called bad; `value`, `peers` and `history` are in the quantity's unit.
    """

    z: FloatArray
    value: FloatArray
    peers: FloatArray
    history: FloatArray


def middle(values: FloatArray, axis: int) -> FloatArray:
    """Return medians of what is known; NaN where nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values, axis=axis), dtype=np.float64)


def score(
    values: FloatArray, sign: int, scatter: float, window: slice, past: slice | None
) -> Score:
    """Return how bad each place is in a window.

    With peers it is their difference that counts, which a change of all of them leaves as it was; with a past, how
    far that difference, or without peers the value itself, moved.

    Args:
        values: (places, bins), NaN where nothing was told.
        sign: +1 where more is bad, -1 where less is.
        scatter: The least spread, in the unit of the values.
        window: Bins in question.
        past: Bins before; None without a past.
    """
    places = values.shape[0]
    now = middle(values[:, window], 1)
    known = int(np.isfinite(now).sum())
    has_peers = known >= MIN_PLACES
    history = middle(values[:, past], 1) if past is not None else np.full(places, np.nan)
    peers = np.full(places, np.nan)
    deviation, reference = values, 0.0
    if has_peers:
        deviation = values - middle(values, 0)[None, :]
        reference = float(np.nanmedian(now))
        peers = np.full(places, reference)
    moved = middle(deviation[:, window], 1)
    z = np.full(places, np.nan)
    by_peers = np.full(places, np.nan)
    if has_peers:
        floor = max(scatter, MIN_SCATTER_RATIO * abs(reference))
        usual = np.maximum(_SIGMA * np.nanmedian(np.abs(moved)), floor)
        noise = _MEDIAN_ERROR * _spread(deviation[:, window])
        by_peers = sign * moved / np.maximum(usual, noise)
        z = by_peers
    if past is not None:
        before = middle(deviation[:, past], 1)
        floors = np.maximum(scatter, MIN_SCATTER_RATIO * np.abs(history))
        usual_then = np.maximum(_SIGMA * _mad(deviation[:, past]), floors)
        noise = _MEDIAN_ERROR * _spread(deviation[:, window])
        z = sign * (moved - before) / np.maximum(usual_then, noise)
        if has_peers:
            # What sets it apart from its peers must be there, and must have come with the fall.
            z = np.minimum(z, by_peers)
    return Score(z, now, peers, history)


def find_episode(work: FloatArray) -> Episode | None:
    """Return the last time in which the work was a tenth below its past, and by six of its deviations.

    Args:
        work: What was done in each bin; bins in which nothing is known are skipped.
    """
    at = np.flatnonzero(np.isfinite(work))
    curve = work[at]
    past: list[float] = []
    found: Episode | None = None
    start: int | None = None
    for k in range(curve.size):
        if len(past) < MIN_PAST_BINS:
            past.append(float(curve[k]))
            continue
        base = float(np.median(past))
        mad = float(np.median(np.abs(np.array(past) - base)))
        limit = base - max(Z_LIMIT * _SIGMA * mad, MIN_FALL_RATIO * base)
        ahead = curve[k : k + MIN_LOW_BINS]
        is_whole = ahead.size == MIN_LOW_BINS
        if start is None and is_whole and bool((ahead < limit).all()):
            start = k
        elif start is not None and is_whole and bool((ahead >= limit).all()):
            found, start = Episode(int(at[start]), int(at[k])), None
        if start is None:
            past.append(float(curve[k]))
    return Episode(int(at[start]), None) if start is not None else found


def _mad(values: FloatArray) -> FloatArray:
    return middle(np.abs(values - middle(values, 1)[:, None]), 1)


def _spread(values: FloatArray) -> FloatArray:
    """Return the standard deviation of each place's numbers over the root of how many they are."""
    count = np.maximum(np.isfinite(values).sum(axis=1), 1)
    return np.asarray(_SIGMA * _mad(values) / np.sqrt(count), dtype=np.float64)
