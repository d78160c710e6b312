"""Sums of counters over the groups that a rank is in."""

from __future__ import annotations

from rootwalk.ebpf.host.growth import Growth


def test_what_was_counted_before_is_not_the_ranks() -> None:
    growth = Growth()
    assert growth.take({"a": {"max": 100}}) == {"max": 0}
    assert growth.take({"a": {"max": 140}}) == {"max": 40}


def test_rank_that_is_moved_keeps_its_sum_and_takes_no_strangers() -> None:
    growth = Growth()
    growth.take({"a": {"max": 100}})
    growth.take({"a": {"max": 140}})
    assert growth.take({"b": {"max": 5000}}) == {"max": 40}
    assert growth.take({"b": {"max": 5003}}) == {"max": 43}
    # Back again: what it counted without the rank is not the rank's.
    assert growth.take({"a": {"max": 900}}) == {"max": 43}


def test_group_that_is_made_again_begins_at_nought() -> None:
    growth = Growth()
    growth.take({"a": {"max": 100}})
    assert growth.take({"a": {"max": 7}}) == {"max": 7}


def test_groups_add_up_and_what_is_not_told_now_is_absent() -> None:
    growth = Growth()
    growth.take({"a/b": {"max": 1, "oom": 0}, "a": {"max": 10}})
    assert growth.take({"a/b": {"max": 3, "oom": 1}, "a": {"max": 15}}) == {"max": 7, "oom": 1}
    assert growth.take({"a/b": {}, "a": {}}) == {}
