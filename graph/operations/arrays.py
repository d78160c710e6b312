"""The operations of a job's steps as arrays: who did what, when, and together with whom.

Owns the shape in which operations enter the analysis. An operation that has a group is communication; all members of a
group, which are operations of different ranks, wait for the last of them. Knows nothing of the store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rootwalk.graph.align import MIN_CLOCKS, fit_clocks
from rootwalk.graph.columns import BoolArray, FloatArray, IntArray
from rootwalk.graph.model import DataQuality, QualityCode

__all__ = [
    "NOT_KNOWN",
    "Operations",
    "align_operations",
    "group_maxima",
    "medians_by",
    "numbered",
    "take",
    "unequal_groups",
]

# Of a number that an operation does not have: a micro-batch of an optimiser update.
NOT_KNOWN: Final = -1
# A column whose numbers are this many times as far apart as it has rows is sorted, not counted.
MAX_GAPS_RATIO: Final = 4
# With more groups than this part lacking a member it is not known who waited for whom.
MAX_UNEQUAL_RATIO: Final = 0.1


@dataclass(frozen=True, slots=True)
class Operations:
    """One row per operation, in any order; times in seconds from the beginning of its step, on the rank's clock.

    Attributes:
        step: Number of its step.
        rank: Who did it.
        replica: Data-parallel rank, or NOT_KNOWN.
        stage: Pipeline stage, or NOT_KNOWN.
        type: Index in `types`.
        phase: Index in `phases`: which computation a send or receive belongs to.
        sequence: Its number among the operations of its type on its rank in its step.
        micro_batch: Which micro-batch it worked on, or NOT_KNOWN.
        group: The same number on all members of a communication in one step, NOT_KNOWN for a computation.
        size: Members that its group should have.
        is_message: Whether it is a send or receive: members may end at different times.
        is_send: Whether it is a send.
    """

    step: IntArray
    rank: IntArray
    replica: IntArray
    stage: IntArray
    type: IntArray
    phase: IntArray
    sequence: IntArray
    micro_batch: IntArray
    group: IntArray
    size: IntArray
    is_message: BoolArray
    is_send: BoolArray
    start_s: FloatArray
    end_s: FloatArray
    types: tuple[str, ...]
    phases: tuple[str, ...]

    @property
    def is_communication(self) -> BoolArray:
        """Which operations wait for other ranks."""
        return np.asarray(self.group >= 0, dtype=np.bool_)

    @property
    def step_numbers(self) -> IntArray:
        """Numbers of the steps, ascending."""
        return self.step[numbered(self.step)[0]]


def take(operations: Operations, chosen: BoolArray | IntArray) -> Operations:
    """Return chosen operations, in the order in which they are chosen."""
    columns = {
        name: getattr(operations, name)[chosen]
        for name in Operations.__slots__
        if name not in ("types", "phases")
    }
    return replace(operations, **columns)


def numbered(*columns: IntArray) -> tuple[IntArray, IntArray]:
    """Number rows from 0, the same for rows that are equal in all columns, in the columns' order.

    Costs as much as the rows where a column has hardly more numbers than that, and else as much as sorting it.

    Returns:
        The first row that has each number, (numbers,), and the number of each row, (rows,).
    """
    result = _dense(columns[0])
    for column in columns[1:]:
        more = _dense(column)
        result = _dense(result * (int(more.max(initial=0)) + 1) + more)
    first = np.full(int(result.max(initial=-1)) + 1, result.size, dtype=np.int64)
    # Of several rows that are written to one place the last one stays.
    first[result[::-1]] = np.arange(result.size - 1, -1, -1)
    return first, result


def _dense(column: IntArray) -> IntArray:
    """Return the place of each number among the different ones of its column."""
    if not column.size:
        return column.astype(np.int64)
    low, high = int(column.min()), int(column.max())
    if high - low > MAX_GAPS_RATIO * column.size:
        return np.unique(column, return_inverse=True)[1].astype(np.int64)
    is_there = np.zeros(high - low + 1, dtype=np.bool_)
    is_there[column - low] = True
    return (np.cumsum(is_there) - 1)[column - low]


def group_maxima(group: IntArray, values: FloatArray) -> FloatArray:
    """Return for each row the largest value of its group; its own where it has no group."""
    result = values.copy()
    members = np.flatnonzero(group >= 0)
    if members.size:
        highest = np.full(int(group.max()) + 1, -np.inf)
        np.maximum.at(highest, group[members], values[members])
        result[members] = highest[group[members]]
    return result


def medians_by(key: IntArray, values: FloatArray) -> FloatArray:
    """Return the median of the values of each key, (largest key + 1,); NaN for a key that none has."""
    count = int(key.max()) + 1 if key.size else 0
    result = np.full(count, np.nan)
    ordered = values[np.lexsort((values, key))]
    counts = np.bincount(key, minlength=count)
    numbers = np.flatnonzero(counts)
    sizes = counts[numbers]
    first = np.cumsum(sizes) - sizes
    low, high = first + (sizes - 1) // 2, first + sizes // 2
    result[numbers] = (ordered[low] + ordered[high]) / 2.0
    return result


def unequal_groups(operations: Operations) -> int:
    """Return how many groups lack a member, or have one too many."""
    members = operations.group >= 0
    if not members.any():
        return 0
    first, number = numbered(operations.group[members])
    return int((operations.size[members][first] != np.bincount(number)).sum())


def align_operations(
    operations: Operations,
) -> tuple[Operations, dict[int, float], float, tuple[DataQuality, ...]]:
    """Put the ranks' clocks on one reference, by the ends of collectives.

    Every rank has a clock of its own, since the operations do not say which share one.

    Returns:
        The operations on the reference clock; each rank's offset and the scatter of the clocks, both in seconds; and
        an item when some ranks share no collective with the others.
    """
    first, clock = numbered(operations.rank)
    ranks = operations.rank[first]
    group = operations.group
    members = np.bincount(group[group >= 0], minlength=1)
    usable = (group >= 0) & ~operations.is_message & (operations.size > 1)
    usable[usable] = members[group[usable]] == operations.size[usable]
    if ranks.size < MIN_CLOCKS:
        return operations, dict.fromkeys(ranks.tolist(), 0.0), 0.0, ()
    _, call = numbered(group[usable])
    fit = fit_clocks(clock[usable], call, operations.end_s[usable], ranks.size)
    offset_s = fit.offset_s[clock]
    quality: tuple[DataQuality, ...] = ()
    if fit.is_apart.any():
        count = int(fit.is_apart.sum())
        text = f"{count} of {ranks.size} ranks share no collective with the others"
        quality = (DataQuality(QualityCode.CLOCK_UNALIGNED, text, count),)
    moved = replace(
        operations, start_s=operations.start_s - offset_s, end_s=operations.end_s - offset_s
    )
    offsets = dict(zip(ranks.tolist(), fit.offset_s.tolist(), strict=True))
    return moved, offsets, fit.sigma_s, quality
