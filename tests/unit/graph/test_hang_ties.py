"""Ranks that contradict each other one to one: what the same groups of other ranks do decides, or nothing does."""

from __future__ import annotations

import pytest

from rootwalk.graph.hangs.differences import call_groups, user_frame
from rootwalk.graph.hangs.judge import find_hang
from rootwalk.graph.reasons import Reason
from support.flight_dumps import FlightJob

WORLD = "0"


def pairs(ranks: int) -> FlightJob:
    """A job of pairs: groups 1, 2, ... of ranks (0, 1), (2, 3), ..."""
    groups = {str(1 + first // 2): (first, first + 1) for first in range(0, ranks, 2)}
    return FlightJob(ranks, {WORLD: range(ranks), **groups})


def blamed(job: FlightJob) -> dict[Reason, tuple[int, ...]]:
    return {blame.reason: blame.ranks for blame in find_hang(job.records()).blames}


@pytest.mark.parametrize("odd", range(6))
def test_the_rank_one_ahead_of_its_pair_is_blamed_alone(odd: int) -> None:
    job = pairs(6)
    for rank in range(6):
        if rank == odd:
            job.call(rank, str(1 + rank // 2), "all_gather")
        else:
            job.call(rank, WORLD)
    assert blamed(job) == {Reason.COLLECTIVE_DEADLOCK: (odd,)}


def test_the_rank_that_left_out_a_call_of_its_pair_is_blamed_alone() -> None:
    job = pairs(6)
    for rank in (0, 1, 4, 5):
        job.call(rank, str(1 + rank // 2), "all_gather")
    for group, ranks in (("1", (0, 1)), ("3", (4, 5))):
        job.finish(ranks, group)
    job.call(3, "2", "all_gather")
    for rank in (0, 1, 2, 4, 5):
        job.call(rank, WORLD)
    assert blamed(job) == {Reason.COLLECTIVE_DEADLOCK: (2,)}


@pytest.mark.parametrize("odd", range(4))
def test_of_a_pair_that_calls_two_things_the_one_that_other_pairs_do_not_call_is_blamed(
    odd: int,
) -> None:
    job = pairs(4)
    for rank in range(4):
        job.call(rank, str(1 + rank // 2), "reduce_scatter" if rank == odd else "all_gather")
    assert blamed(job) == {Reason.COLLECTIVE_MISMATCH: (odd,)}


def test_without_groups_alike_both_stay() -> None:
    job = FlightJob(2, {WORLD: range(2)})
    job.call(0, WORLD, "all_gather")
    job.call(1, WORLD, "reduce_scatter")
    assert blamed(job) == {Reason.COLLECTIVE_MISMATCH: (0, 1)}


def test_a_group_without_a_call_yet_is_no_older_dump() -> None:
    job = FlightJob(4, {WORLD: range(4), "5": range(4)})
    job.call_all((0, 1, 3), "5")
    for entries in job.entries.values():
        entries[-1]["collective_seq_id"] = 1
    job.collectives[2, "5"] = -1
    assert blamed(job) == {Reason.NOT_JOINED: (2,)}


def test_what_differs_is_told_with_the_place_of_the_program() -> None:
    job = FlightJob(4, {WORLD: range(4)})
    for rank in range(4):
        job.call(rank, WORLD, elements=7 if rank == 2 else 9, frame=("step", 30 + rank // 2))
    records = job.records()
    groups = call_groups(find_hang(records).blames[0].operation, records)
    assert [(g.ranks, g.operation, g.elements, g.data_type, g.place) for g in groups] == [
        ((2,), "all_reduce", 7, "Float", "step (train.py:31)"),
        ((3,), "all_reduce", 9, "Float", "step (train.py:31)"),
        ((0, 1), "all_reduce", 9, "Float", "step (train.py:30)"),
    ]


def test_the_place_is_the_innermost_frame_outside_pytorch() -> None:
    frames = (
        "all_reduce (distributed_c10d.py:2)",
        "wrapper (c10d_logger.py:8)",
        "step (train.py:4)",
    )
    assert user_frame(frames) == "step (train.py:4)"
    assert user_frame(frames[:1]) == frames[0]
    assert user_frame(()) == ""
