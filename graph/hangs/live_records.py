"""Turn reports of ranks without progress into the records that flight-recorder dumps become.

    reported of each rank and communicator   ended 40, called 42, waits for 31 s
    record                                   frontier 42, unfinished calls 41 and 42

A report names its last call and how far all have ended, not every call between: unfinished calls are made where members
differ, at most `MAX_CALLS` of a communicator. What was called under a number is known of each rank's last call only;
others count as the same call. Sends and receives are not paired: their other end is not reported. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from rootwalk.graph.hangs.flight_records import Frontier, PendingCall, RankRecord
from rootwalk.graph.hangs.live_evidence import CommunicatorProgress, LiveEvidence

__all__ = ["UNKNOWN_OPERATION", "to_records"]

# Unfinished calls that are made of one rank in one communicator: where it waits, and where others have come further.
MAX_CALLS: Final = 8
# What a call is named of which only the number is known.
UNKNOWN_OPERATION: Final = "operation"
# Operations of which every member gives as many bytes.
EQUAL_SIZES: Final = frozenset(("all_reduce", "broadcast", "reduce", "reduce_scatter"))


def to_records(evidence: LiveEvidence) -> list[RankRecord]:
    """Return one record for every rank that reports, ascending."""
    by_communicator: dict[str, list[CommunicatorProgress]] = {}
    for row in evidence.communicators:
        if not row.is_message:
            by_communicator.setdefault(row.communicator, []).append(row)
    frontiers: dict[int, list[Frontier]] = {}
    calls: dict[int, list[PendingCall]] = {}
    for name, rows in sorted(by_communicator.items()):
        members, is_whole = evidence.members[name]
        title = evidence.names.get(name, "")
        sequences = _sequences(rows)
        operations, unsized = _operations(rows), _unsized(rows)
        # All reports are of one moment: an operation that ends at its root first does not make others older.
        least = min(row.issued for row in rows)
        for row in rows:
            ended = min(row.ended, least) or None
            frontier = Frontier(name, title, members, row.issued, ended=ended, is_whole=is_whole)
            frontiers.setdefault(row.rank, []).append(frontier)
            if row.is_pending:
                made = _calls(row, sequences, operations, unsized)
                calls.setdefault(row.rank, []).extend(made)
    records = []
    for rank, progress in sorted(evidence.ranks.items()):
        own = sorted(
            calls.get(rank, ()), key=lambda call: (call.created_unix_ns, call.communicator)
        )
        ordered = tuple(_at(call, order) for order, call in enumerate(own))
        records.append(
            RankRecord(
                *(rank, "", "", tuple(frontiers.get(rank, ())), ordered),
                seen_unix_ns=progress.last.told_ns,
            )
        )
    return records


def _sequences(rows: Sequence[CommunicatorProgress]) -> list[int]:
    """Return the numbers of one communicator at which its members differ."""
    first = [row.ended + 1 for row in rows if row.is_pending]
    issued = sorted({row.issued for row in rows})
    beyond = [number + 1 for number in issued[:-1]]
    return sorted({*sorted(first)[:1], *beyond[:MAX_CALLS], *issued[-1:]})


def _operations(rows: Iterable[CommunicatorProgress]) -> dict[int, str]:
    """Return what was called under each number that is some rank's last, by most of these ranks."""
    named: dict[int, Counter[str]] = {}
    for row in rows:
        named.setdefault(row.issued, Counter())[row.operation or UNKNOWN_OPERATION] += 1
    return {number: min(c, key=lambda o: (-c[o], o)) for number, c in named.items()}


def _unsized(rows: Sequence[CommunicatorProgress]) -> set[int]:
    """Return the numbers under which some rank waits whose last call is a later one: its size there is not known."""
    last = {row.issued for row in rows}
    return {n for n in last if any(row.is_pending and row.ended < n < row.issued for row in rows)}


def _calls(
    row: CommunicatorProgress,
    sequences: Sequence[int],
    operations: Mapping[int, str],
    unsized: Collection[int],
) -> list[PendingCall]:
    """Return the unfinished calls of a rank in one communicator; without their place in its order."""
    created_ns = row.told_ns - round((row.pending_s or 0.0) * 1e9)
    made = []
    wanted = sorted({row.ended + 1, *(s for s in sequences if row.ended < s <= row.issued)})
    for place, number in enumerate(wanted[:MAX_CALLS]):
        is_last = number == row.issued
        operation = row.operation if is_last else operations.get(number, UNKNOWN_OPERATION)
        is_sized = is_last and operation in EQUAL_SIZES and number not in unsized
        made.append(
            PendingCall(
                *(0, row.communicator, number, operation or UNKNOWN_OPERATION, None),
                *(row.size_bytes if is_sized else None, "", False, created_ns + place),
            )
        )
    return made


def _at(call: PendingCall, order: int) -> PendingCall:
    return PendingCall(
        *(order, call.communicator, call.sequence, call.operation, call.peer, call.elements),
        *(call.dtype, call.is_started, call.created_unix_ns, call.frames),
    )
