"""Of ranks that contradict each other one to one, those that differ from what the same groups of other ranks do; pure.

    ranks 0, 1    wait in the world's #40, have called 7 of their pair
    rank 2        waits in the world's #40, has called 7 of its pair
    rank 3        waits in its pair's #8                                  one ahead: it left out the world's #40

Two ranks of a pair say nothing of which is right; pairs of other ranks, at the same number, do. Groups are alike that
have equally many members. Where such groups do not agree, all ranks stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rootwalk.graph.hangs.flight_records import RankRecord
from rootwalk.graph.hangs.operations import Operation, versions_of
from rootwalk.graph.reasons import Reason

if TYPE_CHECKING:
    from rootwalk.graph.hangs.judge import Blame

__all__ = ["settle_ties"]

# Operations of a circle of which the order decides; of longer ones more than one rank may be wrong.
_PAIR: Final = 2


def settle_ties(
    blames: Iterable[Blame], operations: tuple[Operation, ...], by_rank: Mapping[int, RankRecord]
) -> list[Blame]:
    """Return blames, without ranks that do what the same groups of other ranks do.

    Args:
        blames: Of mismatches and circles; others stay as they are.
        operations: Every one that some rank has not finished.
        by_rank: The records.
    """
    settled = []
    for blame in blames:
        odd: set[int] = set()
        if blame.reason is Reason.COLLECTIVE_MISMATCH:
            odd = _odd_versions(blame.operation, operations)
        elif blame.reason is Reason.COLLECTIVE_DEADLOCK and len(blame.cycle) == _PAIR:
            odd = _odd_order(blame.cycle[0], blame.cycle[1], by_rank)
        kept = tuple(rank for rank in blame.ranks if rank in odd)
        is_tie = 0 < len(kept) < len(blame.ranks)
        settled.append(replace(blame, ranks=kept) if is_tie else blame)
    return settled


def _odd_versions(operation: Operation, operations: tuple[Operation, ...]) -> set[int]:
    """Return the ranks that call what no group like theirs calls at the same number; none if nothing decides."""
    votes: set[tuple[str, int | None, str]] = set()
    own = set(operation.members)
    for other in operations:
        is_alike = len(other.members) == len(own) and other.sequence == operation.sequence
        if is_alike and own.isdisjoint(other.members) and not other.is_message:
            votes |= {_version(other, rank) for rank in other.calls}
    groups = versions_of(operation.calls)
    usual = [ranks for ranks in groups if _version(operation, ranks[0]) in votes]
    largest = max(map(len, groups), default=0)
    # A majority has been heard already.
    is_tie = sum(len(ranks) == largest for ranks in groups) > 1
    if not is_tie or len(usual) != 1:
        return set()
    return {rank for ranks in groups if ranks is not usual[0] for rank in ranks}


def _version(operation: Operation, rank: int) -> tuple[str, int | None, str]:
    call = operation.calls[rank]
    return call.operation, call.elements, call.dtype


def _odd_order(first: Operation, second: Operation, by_rank: Mapping[int, RankRecord]) -> set[int]:
    """Return the ranks that have left out one of two operations that wait for each other; none if nothing decides."""
    if first.is_message or second.is_message:
        return set()
    for here, there in ((first, second), (second, first)):
        votes = {
            issued >= there.sequence
            for rank in here.calls
            if rank not in there.members and rank in by_rank
            for issued in _issued_alike(by_rank[rank], here, there)
        }
        if len(votes) == 1:
            # Who waits here has called the other one before, elsewhere: so it is who has not that differs.
            return set(there.absent if votes.pop() else here.absent)
    return set()


def _issued_alike(record: RankRecord, here: Operation, there: Operation) -> list[int]:
    """Return how many calls a rank has issued in its one group that is like another operation's."""
    names = {here.communicator, there.communicator}
    found = [
        frontier.issued
        for frontier in record.frontiers
        if frontier.communicator not in names
        and frontier.is_whole
        and len(frontier.members) == len(there.members)
    ]
    return [found[0]] if len(found) == 1 and found[0] is not None else []
