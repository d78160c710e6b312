"""Which calls broke off: their dumps say that they are over, not whether they have ended or failed.

    rank 0   35 over   36 over |left with an error, and its dump
    rank 1   35 over           |killed: no dump
    rank 2   35 over   36 over   37 over |left with an error, and its dump

Gloo ends a call with an exception when a peer is gone, and its Flight Recorder writes that down as it writes down one
that has gone well. A call counts as broken off where something else says so, and is then unfinished as any other:

- the last one of a rank that waits in nothing, in a communicator of which a member has no dump, or a dump in which it
  has not come so far;
- all from the first on whose members did not call the same, where somebody stopped with it or behind it;
- from the last one on of a rank for which others wait, and which waits in nothing, in a communicator that may have
  members nobody knows of (`membership`), unless it has ended at another: that rank may be a victim.

Where the process of a member without a dump ended with code 0 and nobody waits, the job has ended: nothing broke off.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from rootwalk.graph.hangs.flight_records import PendingCall, RankRecord
from rootwalk.graph.hangs.operations import versions_of

__all__ = ["break_off", "break_off_unsure"]


def break_off(
    by_rank: Mapping[int, RankRecord], not_missed: Collection[int] = ()
) -> dict[int, RankRecord]:
    """Return the records with the calls that broke off among the unfinished ones.

    Args:
        by_rank: Records of one moment.
        not_missed: Ranks without a record of which nothing can be said, or which have ended as they should.
    """
    over: dict[str, dict[int, list[PendingCall]]] = {}
    for rank, record in by_rank.items():
        for call in record.over:
            over.setdefault(call.communicator, {}).setdefault(rank, []).append(call)
    if not over:
        return dict(by_rank)
    broken: dict[int, set[int]] = {}
    for name, calls in sorted(over.items()):
        members = {
            r
            for rank in calls
            for f in by_rank[rank].frontiers
            if f.communicator == name
            for r in f.members
        }
        waiting = _waiting(by_rank, name)
        mismatched = _first_mismatch(calls, waiting)
        if mismatched is not None:
            for rank, own in calls.items():
                broken.setdefault(rank, set()).update(
                    call.order for call in own if call.sequence >= mismatched
                )
            continue
        is_missed = bool(members - by_rank.keys() - set(not_missed))
        came = {rank: own[-1].sequence for rank, own in calls.items()}
        came |= {rank: own[-1].sequence for rank, own in waiting.items()}
        least = min(came.values())
        for rank, own in calls.items():
            if not by_rank[rank].pending and (is_missed or own[-1].sequence > least):
                broken.setdefault(rank, set()).add(own[-1].order)
    return {rank: _reopened(record, broken.get(rank, set())) for rank, record in by_rank.items()}


def break_off_unsure(
    by_rank: Mapping[int, RankRecord], absent: Collection[int]
) -> dict[int, RankRecord]:
    """Return the records with those calls among the unfinished ones that may have failed for an unknown member.

    Args:
        by_rank: As `break_off` returns them.
        absent: Ranks that have not issued what others wait in.
    """
    frontiers = [frontier for record in by_rank.values() for frontier in record.frontiers]
    if not absent or all(frontier.is_whole for frontier in frontiers):
        return dict(by_rank)
    everyone = set(by_rank).union(*{frontier.members for frontier in frontiers})
    ended: dict[str, int] = {}
    for frontier in frontiers:
        if not frontier.is_whole and set(frontier.members) != everyone:
            name = frontier.communicator
            ended[name] = max(ended.get(name, 0), frontier.ended or 0)
    # From which number on calls may have failed, in each communicator: at one member, so at all that stopped there.
    doubted: dict[str, int] = {}
    for record in (by_rank[rank] for rank in absent if not by_rank[rank].pending):
        last = {call.communicator: call.sequence for call in record.over}
        for name, sequence in last.items():
            if name in ended and sequence > ended[name]:
                doubted[name] = min(sequence, doubted.get(name, sequence))
    result = dict(by_rank)
    for rank, record in by_rank.items():
        orders = {call.order for call in record.over}
        if all(call.order in orders for call in record.pending):  # else its calls before have ended
            result[rank] = _reopened(
                record,
                {
                    call.order
                    for call in record.over
                    if call.sequence >= doubted.get(call.communicator, call.sequence + 1)
                },
            )
    return result


def _waiting(by_rank: Mapping[int, RankRecord], name: str) -> dict[int, list[PendingCall]]:
    """Return the unfinished collectives of a communicator, by rank."""
    found: dict[int, list[PendingCall]] = {}
    for rank, record in by_rank.items():
        for call in record.pending:
            if call.communicator == name and call.peer is None:
                found.setdefault(rank, []).append(call)
    return found


def _first_mismatch(
    over: Mapping[int, list[PendingCall]], waiting: Mapping[int, list[PendingCall]]
) -> int | None:
    """Return the number of the first collective that its members did not call alike, and with which somebody stopped.

    Where all have stopped with the same number, and none waits, the job may have ended there: None.
    """
    stops = {rank: calls[-1].sequence for rank, calls in over.items()}
    stops |= {rank: calls[0].sequence for rank, calls in waiting.items()}
    if not waiting and len(set(stops.values())) < 2:
        return None
    called: dict[int, dict[int, PendingCall]] = {}
    for side in (over, waiting):
        for rank, calls in side.items():
            for call in calls:
                called.setdefault(call.sequence, {})[rank] = call
    for sequence in sorted(set(stops.values())):
        if len(versions_of(called[sequence])) > 1:
            return sequence
    return None


def _reopened(record: RankRecord, orders: Collection[int]) -> RankRecord:
    """Return a record whose calls of some places are unfinished."""
    if not orders:
        return record
    calls = {call.order: call for call in record.pending}
    calls |= {call.order: call for call in record.over if call.order in orders}
    return replace(record, pending=tuple(calls[order] for order in sorted(calls)))
