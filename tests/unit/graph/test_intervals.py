"""Intervals: what they cover, against counting every nanosecond."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from rootwalk.graph.importers.intervals import Cover, Starts, as_pairs

MOMENTS = st.integers(0, 40)
INTERVALS = st.lists(st.tuples(MOMENTS, st.integers(0, 12)), max_size=12)


@given(INTERVALS, MOMENTS, MOMENTS)
def test_what_is_covered_is_counted_once(
    lengths: list[tuple[int, int]], low: int, high: int
) -> None:
    values = array("q")
    for start, length in lengths:
        values.extend((start, start + length))
    pairs = as_pairs(values)
    covered = {t for start, length in lengths for t in range(start, start + length)}
    assert Cover(pairs).within(low, high) == len(covered & set(range(low, high)))
    begun = [length for start, length in lengths if low <= start < high]
    assert Starts(pairs).within(low, high) == sum(begun)
