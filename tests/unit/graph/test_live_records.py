"""Reports of ranks without progress as the records that dumps become."""

from __future__ import annotations

from rootwalk.graph.hangs.judge import find_hang
from rootwalk.graph.hangs.live_evidence import (
    CommunicatorProgress,
    LiveEvidence,
    Moment,
    RankProgress,
)
from rootwalk.graph.hangs.live_records import MAX_CALLS, UNKNOWN_OPERATION, to_records
from rootwalk.graph.reasons import Reason

NS = 1_000_000_000
TOLD_NS = 120 * NS


def row(rank: int, issued: int, ended: int, **changes: object) -> CommunicatorProgress:
    known: dict[str, object] = {
        "rank": rank,
        "communicator": "0",
        "issued": issued,
        "ended": ended,
        "operation": "all_reduce",
        "size_bytes": 8,
        "pending_s": 20.0 if issued > ended else None,
        "told_ns": TOLD_NS,
    }
    return CommunicatorProgress(**(known | changes))  # type: ignore[arg-type]


def evidence(*rows: CommunicatorProgress, world: int = 2, is_whole: bool = True) -> LiveEvidence:
    moment = Moment(TOLD_NS, 20.0, "training")
    ranks = {rank: RankProgress(rank, None, (moment,)) for rank in range(world)}
    members = {one.communicator: (tuple(range(world)), is_whole) for one in rows}
    return LiveEvidence(
        *("j1", 0, 100 * NS, TOLD_NS, True, world, ranks, frozenset(ranks)),
        communicators=rows,
        members=members,
        names={"0": "dp0"},
    )


def test_call_that_has_not_ended_is_unfinished_since_it_was_called() -> None:
    waiting, absent = to_records(evidence(row(0, 66, 65), row(1, 65, 65)))
    (call,) = waiting.pending
    assert (call.sequence, call.operation, call.created_unix_ns) == (66, "all_reduce", 100 * NS)
    assert absent.pending == ()
    (frontier,) = absent.frontiers
    assert (frontier.issued, frontier.description, frontier.is_whole) == (65, "dp0", True)


def test_first_number_that_somebody_lacks_is_among_many_calls() -> None:
    ahead, behind = to_records(evidence(row(0, 90, 60), row(1, 70, 60)))
    assert [call.sequence for call in ahead.pending] == [61, 71, 90]
    assert [call.sequence for call in behind.pending] == [61]
    assert ahead.pending[0].operation == UNKNOWN_OPERATION


def test_calls_of_one_rank_are_few_however_the_others_differ() -> None:
    rows = [row(rank, 10 + rank, 5) for rank in range(100)]
    records = to_records(evidence(*rows, world=100))
    assert max(len(record.pending) for record in records) <= MAX_CALLS


def test_same_call_is_none_other_where_one_has_gone_on_to_a_later_one() -> None:
    """The size is known of the last call only: it is no mismatch that it is not of the one before."""
    records = to_records(evidence(row(0, 66, 65), row(1, 67, 65, operation="broadcast")))
    hang = find_hang(records)
    assert Reason.COLLECTIVE_MISMATCH not in {blame.reason for blame in hang.blames}


def test_operation_that_ends_at_its_root_first_makes_no_rank_older() -> None:
    rows = (row(0, 71, 70, operation="broadcast"), row(1, 69, 69))
    (blame,) = find_hang(to_records(evidence(*rows))).blames
    assert (blame.reason, blame.ranks) == (Reason.NOT_JOINED, (1,))


def test_another_size_under_one_number_is_another_call() -> None:
    rows = (row(0, 66, 65), row(1, 66, 65, size_bytes=16), row(2, 66, 65))
    (blame,) = find_hang(to_records(evidence(*rows, world=3))).blames
    assert (blame.reason, blame.ranks) == (Reason.COLLECTIVE_MISMATCH, (1,))


def test_members_may_give_different_sizes_to_some_operations() -> None:
    rows = (
        row(0, 66, 65, operation="all_to_all"),
        row(1, 66, 65, operation="all_to_all", size_bytes=16),
    )
    assert find_hang(to_records(evidence(*rows))).blames == ()


def test_member_that_is_not_known_is_not_called_absent() -> None:
    (only, _) = to_records(evidence(row(0, 66, 65), is_whole=False))
    assert not only.frontiers[0].is_whole
