"""Who has not called what the others have, by counts of NCCL's calls alone; and when counts say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rootwalk.graph.hangs.counted import (
    COUNTS_ONLY,
    ENDED_NS,
    MIN_STILL_NS,
    Count,
    judge_counts,
)
from rootwalk.graph.hangs.judge import Hang
from rootwalk.graph.reasons import Reason

NS = 1_000_000_000
START_NS = 1_700_000_000 * NS
MOVED_NS = START_NS + 100 * NS
END_NS = MOVED_NS + MIN_STILL_NS
WORLD, FIRST, SECOND = "aaaa", "bbbb", "cccc"


def called(
    communicator: str, by_rank: dict[int, int], size: int | None = -1, *, is_message: bool = False
) -> list[Count]:
    """Counts that have stood still for long enough; the size is that of the members told of."""
    members = len(by_rank) if size == -1 else size
    return [
        Count(rank, communicator, members, is_message, count, END_NS, MOVED_NS)
        for rank, count in by_rank.items()
    ]


def judge(counts: Sequence[Count], last_step_ns: int = 0, unseen: Sequence[int] = ()) -> Hang:
    judged = judge_counts(counts, last_step_ns, unseen)
    assert judged is not None
    return judged[1]


def blamed(hang: Hang) -> list[tuple[Reason, tuple[int, ...]]]:
    return [(blame.reason, blame.ranks) for blame in hang.blames]


ONE_ABSENT = called(WORLD, {0: 41, 1: 41, 2: 40, 3: 43})


def test_rank_that_has_called_less_has_not_joined() -> None:
    hang = judge(ONE_ABSENT)
    assert blamed(hang) == [(Reason.NOT_JOINED, (2,))]
    (blame,) = hang.blames
    # Rank 3 went on without waiting: the first that is missing is what all of them wait in.
    assert (blame.operation.communicator, blame.operation.sequence) == (WORLD, 41)
    assert (blame.operation.joined, blame.operation.absent) == ((0, 1, 3), (2,))
    assert blame.certainty == COUNTS_ONLY
    assert hang.victims == (0, 1, 3)


def test_order_of_the_ranks_means_nothing() -> None:
    assert blamed(judge(list(reversed(ONE_ABSENT)))) == blamed(judge(ONE_ABSENT))


def test_equal_counts_accuse_nobody() -> None:
    assert judge_counts(called(WORLD, {0: 41, 1: 41, 2: 41, 3: 41})) is None
    assert judge_counts([]) is None


def test_victim_in_another_communicator_is_not_accused() -> None:
    # Tensor-parallel pairs (0 1) (2 3), data-parallel pairs (0 2) (1 3); rank 1 stands still.
    #    pair 0 1: rank 0 has called 8, rank 1 7      pair 2 3: both 8
    #    pair 0 2: rank 2 has called 5, rank 0 4, as it waits for rank 1      pair 1 3: 3 has called 5, 1 has called 4
    counts = [
        *called(FIRST, {0: 8, 1: 7}),
        *called(SECOND, {2: 8, 3: 8}),
        *called("dddd", {0: 4, 2: 5}),
        *called("eeee", {1: 4, 3: 5}),
    ]
    assert {ranks for _, ranks in blamed(judge(counts))} == {(1,)}


@pytest.mark.parametrize("late", [replace(ONE_ABSENT[0], since_unix_ns=MOVED_NS + NS)])
def test_job_that_goes_on_is_not_judged(late: Count) -> None:
    assert judge_counts([late, *ONE_ABSENT[1:]]) is None
    # Messages are calls too.
    sent = replace(late, communicator=FIRST, is_message=True)
    assert judge_counts([sent, *ONE_ABSENT]) is None


def test_job_whose_steps_end_is_not_judged() -> None:
    assert judge(ONE_ABSENT, MOVED_NS + 10 * NS).blames
    assert judge_counts(ONE_ABSENT, MOVED_NS + 11 * NS) is None


def test_member_that_is_not_told_of_might_have_called_less() -> None:
    assert judge_counts(called(WORLD, {0: 41, 1: 41, 2: 40}, 4)) is None
    # Of one that was split the size is not known: its members are those that tell of it.
    assert blamed(judge(called(WORLD, {0: 41, 1: 41, 2: 40}, None))) == [(Reason.NOT_JOINED, (2,))]


def test_member_that_is_told_of_no_longer_ends_it() -> None:
    gone = replace(ONE_ABSENT[2], seen_unix_ns=END_NS - ENDED_NS - NS)
    assert judge_counts([*ONE_ABSENT[:2], gone, ONE_ABSENT[3]]) is None


def test_communicator_that_is_gone_says_nothing() -> None:
    before_ns = MOVED_NS - 60 * NS
    old = [
        replace(one, communicator=FIRST, seen_unix_ns=before_ns, since_unix_ns=before_ns)
        for one in called(FIRST, {0: 9, 1: 3})
    ]
    assert blamed(judge([*old, *ONE_ABSENT])) == [(Reason.NOT_JOINED, (2,))]


@pytest.mark.parametrize(
    ("more", "unseen"),
    [
        (called(FIRST, {2: 7, 3: 7}, is_message=True), ()),
        ([], (2,)),
    ],
)
def test_who_may_wait_in_what_is_not_counted_is_not_accused(
    more: list[Count], unseen: Sequence[int]
) -> None:
    hang = judge([*ONE_ABSENT, *more], unseen=unseen)
    assert (blamed(hang), hang.victims) == ([], (0, 1, 3))
    assert hang.operations


def test_ways_of_others_to_wait_do_not_matter() -> None:
    messages = called(FIRST, {0: 7, 3: 7}, is_message=True)
    assert blamed(judge([*ONE_ABSENT, *messages], unseen=(1,))) == [(Reason.NOT_JOINED, (2,))]


def test_ranks_that_wait_for_each_other_are_not_told_apart() -> None:
    # 0 has called in one, 1 in the other: a circle, or rank 0 goes on soon; counts know no order.
    hang = judge([*called(FIRST, {0: 3, 1: 2}), *called(SECOND, {0: 2, 1: 3})])
    assert blamed(hang) == []
    assert hang.operations
