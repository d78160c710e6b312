"""Iterations of records of which some are lost: found by the numbers of the calls, kept where they are whole; pure.

    number    1 2 3 | 4 5 6 | 7 8 9 | 10 11 12
    rank 0    A B C | A B C | A   C | A  B  C       the third iteration is left out, and its time with it
    rank 1    A B C | A B C | A B C | A  B  C

A log that drops records, or keeps the last ones of a ring, has the numbers of those that it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rootwalk.graph.columns import BoolArray, IntArray
from rootwalk.graph.flows.iterations import MAX_PERIOD, MAX_TEXT, MIN_AGREEMENT, MIN_REPEATS
from rootwalk.graph.flows.rows import FlowRows

__all__ = ["WholeIterations", "find_whole_iterations"]

# Numbers of one series at most: gaps between them are no larger than the job.
MAX_SPAN: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class WholeIterations:
    """The records of iterations without a gap, how many these are, and how many were left out.

    Attributes:
        rows: Records of messages and of the iterations that are whole; their times without those of the others.
        kept: Iterations of which every member has every record.
        left_out: The others.
    """

    rows: FlowRows
    kept: int
    left_out: int


def find_whole_iterations(rows: FlowRows) -> WholeIterations | None:
    """Return the iterations without a gap; None if no pattern repeats, or too few are whole."""
    chosen = np.flatnonzero(~rows.is_message & (rows.size > 1))
    if not chosen.size:
        return None
    series = rows.series[chosen]
    periods = {}
    for one in np.unique(series):
        own = chosen[series == one]
        found = _period(rows, own)
        if found is None:
            return None
        periods[int(one)] = found
    spans = {one: int(np.ptp(rows.sequence[chosen[series == one]])) + 1 for one in periods}
    count = min(spans[one] // period for one, period in periods.items())
    if count < MIN_REPEATS:
        return None
    iteration = np.full(rows.rank.size, -1, dtype=np.int64)
    is_whole = np.ones(count, dtype=np.bool_)
    for one, period in periods.items():
        own = chosen[series == one]
        # Calls of one iteration: as many periods as fit the series that repeats least often.
        calls = period * max(1, round(spans[one] / period / count))
        at = (rows.sequence[own] - rows.sequence[own].min()) // calls
        iteration[own] = np.where(at < count, at, -1)
        is_whole &= _whole(rows, own, at, calls, count)
    kept = int(is_whole.sum())
    if kept < MIN_REPEATS:
        return None
    stays = rows.is_message | ((iteration >= 0) & is_whole[np.maximum(iteration, 0)])
    return WholeIterations(_closed_up(rows, iteration, is_whole, stays), kept, count - kept)


def _period(rows: FlowRows, own: IntArray) -> int | None:
    """Return after how many calls the kinds of one series repeat, by the numbers that some rank has."""
    start = int(rows.sequence[own].min())
    span = int(rows.sequence[own].max()) - start + 1
    if span > MAX_SPAN:
        return None
    kinds = np.stack([rows.operation[own], rows.size_bytes[own], rows.size[own]], axis=1)
    letter = np.unique(kinds, axis=0, return_inverse=True)[1].reshape(-1)
    text = np.full(span, -1, dtype=np.int64)
    text[rows.sequence[own] - start] = letter
    text = text[:MAX_TEXT]
    for period in range(1, min(text.size // MIN_REPEATS, MAX_PERIOD) + 1):
        left, right = text[period:], text[:-period]
        known = (left >= 0) & (right >= 0)
        if known.any() and float((left == right)[known].mean()) >= MIN_AGREEMENT:
            return period
    return None


def _whole(rows: FlowRows, own: IntArray, at: IntArray, calls: int, count: int) -> BoolArray:
    """Return of which iterations every member has every call of a series, once."""
    members = int(rows.size[own].max())
    keys = np.unique(np.stack([at, rows.sequence[own], rows.rank[own]], axis=1), axis=0)
    inside = keys[keys[:, 0] < count]
    found = np.bincount(inside[:, 0], minlength=count)[:count]
    every = np.bincount(at[at < count], minlength=count)[:count]
    return np.asarray((found == calls * members) & (every == found), dtype=np.bool_)


def _closed_up(
    rows: FlowRows, iteration: IntArray, is_whole: BoolArray, stays: BoolArray
) -> FlowRows:
    """Return the rows that stay, on clocks that stand still in iterations that were left out."""
    placed = (iteration >= 0) & ~rows.is_message
    ends_s = np.full(is_whole.size, -np.inf)
    np.maximum.at(ends_s, iteration[placed], rows.end_s[placed])
    known = ends_s[np.isfinite(ends_s)]
    usual_s = float(np.median(np.diff(known))) if known.size > 1 else 0.0
    before: IntArray = np.cumsum(~is_whole).astype(np.int64) - (~is_whole).astype(np.int64)
    shift_s = np.where(iteration >= 0, before[np.maximum(iteration, 0)] * usual_s, 0.0)
    fields = {
        name: getattr(rows, name)[stays]
        for name in (
            *("rank", "communicator", "series", "sequence", "operation", "size", "size_bytes"),
            *("duration_s", "is_end_known", "is_message", "peer"),
        )
    }
    return replace(rows, **fields, end_s=(rows.end_s - shift_s)[stays])
