"""Arithmetic of intervals against counting every moment one by one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rootwalk.ebpf.intervals import Interval, find_union, sum_overlap_ns

intervals = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))),
    max_size=12,
)


def moments(parts: list[Interval]) -> set[int]:
    return {moment for low, high in parts for moment in range(low, high)}


@given(intervals)
def test_union_covers_the_same_moments_once_and_in_order(parts: list[Interval]) -> None:
    union = find_union(parts)
    assert moments(union) == moments(parts)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(union))


@given(intervals, intervals)
def test_overlap_is_what_both_cover(one: list[Interval], other: list[Interval]) -> None:
    overlap = sum_overlap_ns(find_union(one), find_union(other))
    assert overlap == len(moments(one) & moments(other))
