"""Clocks recovered from collectives that all members end at the same moment."""

from __future__ import annotations

import numpy as np
import pytest

from rootwalk.graph import align
from rootwalk.graph.align import find_clock_offsets, fit_clocks, is_symmetric
from rootwalk.graph.columns import CollectiveRows


def collectives(end_s: list[list[float]], operation: str = "all_reduce") -> CollectiveRows:
    """One row of `end_s` per collective, one column per rank."""
    table = np.array(end_s)
    groups, ranks = table.shape
    group = np.repeat(np.arange(groups), ranks)
    rank = np.tile(np.arange(ranks), groups)
    ends = table.ravel()
    zeros = np.zeros(group.size, dtype=np.int64)
    return CollectiveRows(
        step=zeros,
        rank=rank,
        group=group,
        communicator=zeros,
        sequence=group,
        size=np.full(group.size, ranks),
        start_s=ends - 0.01,
        end_s=ends,
        foreign_s=np.zeros(group.size),
        own_s=np.zeros(group.size),
        idle_s=np.zeros(group.size),
        operation=(operation,) * group.size,
        communicator_name=("c",) * group.size,
        is_end_known=np.ones(group.size, dtype=np.bool_),
    )


def test_fifty_milliseconds_of_skew_are_recovered_within_a_third_of_one() -> None:
    random = np.random.default_rng(3)
    skew = np.array([0.050, -0.050, 0.010])
    ends = [(k * 0.2 + skew + random.normal(0.0, 1e-4, 3)).tolist() for k in range(200)]
    offsets = find_clock_offsets(collectives(ends), {0: "a", 1: "b", 2: "c"})
    # The reference is the median host: c.
    expected = {"a": 0.040, "b": -0.060, "c": 0.0}
    assert offsets.offset_s_by_host == pytest.approx(expected, abs=3e-4)
    assert offsets.sigma_s < 1e-3


def test_one_host_has_no_offset() -> None:
    offsets = find_clock_offsets(collectives([[1.0, 1.5]]), {0: "a", 1: "a"})
    assert offsets.offset_s_by_host == {"a": 0.0}


def test_late_records_of_a_few_collectives_do_not_move_the_clock() -> None:
    ends = [[k * 0.2, k * 0.2 + 0.05] for k in range(50)]
    for k in (3, 17, 31):
        ends[k][1] += 1.0
    offsets = find_clock_offsets(collectives(ends), {0: "a", 1: "b"}).offset_s_by_host
    assert offsets["b"] - offsets["a"] == pytest.approx(0.05, abs=1e-3)


def test_a_host_without_common_collectives_is_named_as_unaligned() -> None:
    found = find_clock_offsets(collectives([[1.0, 1.5]], "broadcast"), {0: "a", 1: "b"})
    assert found.offset_s_by_host == {"a": 0.0, "b": 0.0}
    assert [item.code for item in found.quality] == ["CLOCK_UNALIGNED"]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("all_reduce", True),
        ("barrier", True),
        ("reduce_scatter_tensor", True),
        ("reduce", False),
        ("broadcast", False),
    ],
)
def test_members_of_one_sided_operations_may_leave_early(operation: str, expected: bool) -> None:
    assert is_symmetric(operation) is expected


@pytest.mark.parametrize("most_dense", [256, 8], ids=["table", "gradients"])
def test_many_clocks_are_fitted_alike_with_and_without_a_table(
    monkeypatch: pytest.MonkeyPatch, most_dense: int
) -> None:
    """Rings of three: clock k shares collectives with k + 1 and k + 2, and all share one."""
    monkeypatch.setattr(align, "MAX_DENSE_CLOCKS", most_dense)
    random = np.random.default_rng(5)
    count = 40
    skew = random.normal(0.0, 0.05, count)
    members = [[(first + k) % count for k in range(3)] for first in range(count)]
    members += [list(range(count))]
    clock = np.concatenate([np.array(m) for m in members])
    group = np.repeat(np.arange(len(members)), [len(m) for m in members])
    end_s = 0.2 * group + skew[clock] + random.normal(0.0, 1e-5, clock.size)
    fit = fit_clocks(clock, group, end_s, count)
    assert not fit.is_apart.any()
    assert fit.offset_s == pytest.approx(skew - np.median(skew), abs=1e-4)
