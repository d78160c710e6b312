"""Arithmetic of intervals: pairs (start, end), ns of one clock, end not included. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Interval", "find_union", "subtract", "sum_overlap_ns"]

Interval = tuple[int, int]


def find_union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the time that at least one interval covers, as disjoint intervals in order."""
    union: list[Interval] = []
    for low, high in sorted(intervals):
        if union and low <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], high))
        elif low < high:
            union.append((low, high))
    return union


def sum_overlap_ns(one: Sequence[Interval], other: Sequence[Interval]) -> int:
    """Return for how long two lists, each of disjoint intervals in order, both last, ns."""
    total = first = second = 0
    while first < len(one) and second < len(other):
        one_low, one_high = one[first]
        other_low, other_high = other[second]
        low = max(one_low, other_low)
        if one_high < other_high:
            high = one_high
            first += 1
        else:
            high = other_high
            second += 1
        if low < high:
            total += high - low
    return total


def subtract(intervals: Sequence[Interval], holes: Sequence[Interval]) -> list[Interval]:
    """Return the parts of one list that the other does not cover; both of disjoint intervals in order."""
    parts: list[Interval] = []
    first = 0
    for low, high in intervals:
        while first < len(holes) and holes[first][1] <= low:
            first += 1
        begin = low
        for hole_low, hole_high in holes[first:]:
            if hole_low >= high:
                break
            if hole_low > begin:
                parts.append((begin, hole_low))
            begin = max(begin, hole_high)
        if begin < high:
            parts.append((begin, high))
    return parts
