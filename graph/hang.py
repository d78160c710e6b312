"""Why a job hangs, from what every rank recorded: what waits for what, and where the waiting ends.

    operation --not issued by--> host of a rank --its last call--> operation
              --queued behind--> the rank's call before it
              --not finished though its peers have--> device of a rank
              --no dump--------> rank that is gone

Points without a way out are to blame; all ranks that lead to them are victims. Pure: no store, no text. The rules hold
for any job, for these reasons:

- A host that has issued nothing that is unfinished waits for no other rank; if others wait for its call, it is to blame.
- A host that has unfinished calls may wait for the last of them, and a device may take calls in the order in which they
  were issued: so blame moves on along both. Neither must be so (calls of other communicators run beside each other);
  blame that moves on needlessly ends at a rank that holds up others as well, and cycles made so are less certain.
- All-reduce, all-gather, reduce-scatter and barrier end nowhere before every member's device has taken part. What a peer
  has finished, a member's device has begun; and in one communicator a device begins a call when the one before has
  ended. So a rank whose record says "not finished" for an operation before one that a peer has finished has a
  device that no longer answers: PyTorch asks it at the dump. With one operation between them the missing part may
  still be on its way; then a rank is only blamed if it is the only one.
- Where the recorder times the device and some members have begun an operation that all have issued, those that have not
  and have nothing before it are held up by what else their device does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from rootwalk.graph.flight_records import Frontier, PendingCall, RankRecord
from rootwalk.graph.reasons import Reason
from rootwalk.graph.wait_graph import final_parts

__all__ = ["Blame", "Call", "Hang", "Operation", "find_hang"]

# Operations that end at no member before every member's device has taken part. An all-to-all may send nothing to some.
SYNCHRONISING: Final = frozenset(("all_reduce", "all_gather", "reduce_scatter", "barrier"))


class Kind(IntEnum):
    """Kinds of points, in the order of their numbers in `Point`."""

    OPERATION = 0
    HOST = 1
    DEVICE = 2
    GONE = 3
    MISMATCH = 4


# Kind, rank or number of the operation.
Point = tuple[Kind, int]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that at least one rank has not finished; a send and its receive are one.

    Attributes:
        communicator: Its name.
        description: What the job calls it.
        sequence: The number that its members give it; of a message the lowest count of its ends.
        operation: Such as `all_reduce`; `send` for a message.
        members: All ranks that take part.
        calls: The unfinished calls, by rank.
        finished: Ranks that have finished it.
        absent: Ranks that have a dump and have not issued it.
        gone: Members without a dump.
    """

    communicator: str
    description: str
    sequence: int
    operation: str
    members: tuple[int, ...]
    calls: Mapping[int, PendingCall]
    finished: tuple[int, ...]
    absent: tuple[int, ...]
    gone: tuple[int, ...]

    @property
    def joined(self) -> tuple[int, ...]:
        """Ranks that have issued it, finished or not."""
        return tuple(sorted({*self.calls, *self.finished}))

    @property
    def since_unix_ns(self) -> int:
        """When the first rank that has not finished it issued it."""
        return min(call.created_unix_ns for call in self.calls.values())


@dataclass(frozen=True, slots=True)
class Blame:
    """One reason with the ranks that it holds for.

    Attributes:
        reason: Code of the contract.
        ranks: Who is to blame, ascending.
        operation: The operation that shows it best.
        certainty: 0 to 1: how surely the dumps say so.
        cycle: The operations of a cyclic wait, each waiting for the next; empty for other reasons.
    """

    reason: Reason
    ranks: tuple[int, ...]
    operation: Operation
    certainty: float
    cycle: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Hang:
    """What hangs and why.

    Attributes:
        operations: Every operation that some rank has not finished.
        blames: By reason, the surest first; empty if the dumps do not tell.
        victims: Ranks with an unfinished call that are not to blame.
        missing: Ranks of the job without a dump.
        ahead: Operations that a rank has finished and another, without which it cannot end, has not issued: the dumps
            are not of one moment.
    """

    operations: tuple[Operation, ...]
    blames: tuple[Blame, ...]
    victims: tuple[int, ...]
    missing: tuple[int, ...]
    ahead: int
    world: int


Call = PendingCall


@dataclass(slots=True)
class _Waits:
    """The graph under construction, and which ranks make each of its edges."""

    edges: dict[Point, list[Point]] = field(default_factory=dict)
    ranks: dict[tuple[Point, Point], set[int]] = field(default_factory=dict)

    def add(self, source: Point, target: Point, rank: int) -> None:
        self.edges.setdefault(source, []).append(target)
        self.edges.setdefault(target, [])
        self.ranks.setdefault((source, target), set()).add(rank)


def find_hang(records: Iterable[RankRecord]) -> Hang:
    """Return what hangs and why, from one record a rank."""
    by_rank = {record.rank: record for record in records}
    operations = _operations(by_rank)
    stopped = _stopped_devices(operations)
    waits = _wait_graph(by_rank, operations, stopped)
    blames = []
    unsure = sum(1 for op in operations for rank in op.absent if _is_presumed(by_rank[rank], op))
    for part in final_parts(waits.edges):
        blames += _blames(part, waits, operations, stopped, bool(unsure))
    merged = _merge(blames)
    blamed = {rank for blame in merged for rank in blame.ranks}
    world = {rank for r in by_rank.values() for f in r.frontiers for rank in f.members}
    waiting = {rank for op in operations for rank in op.calls}
    return Hang(
        operations=operations,
        blames=merged,
        victims=tuple(sorted(waiting - blamed)),
        missing=tuple(sorted(world - set(by_rank))),
        ahead=sum(1 for op in operations if _is_ahead(op)),
        world=len(world | set(by_rank)),
    )


def _operations(by_rank: Mapping[int, RankRecord]) -> tuple[Operation, ...]:
    """Return every operation that some rank has not finished, by communicator and number."""
    frontiers = {(f.communicator, rank): f for rank, r in by_rank.items() for f in r.frontiers}
    with_messages = {f.communicator for f in frontiers.values() if f.has_messages}
    collectives: dict[tuple[str, int], dict[int, PendingCall]] = {}
    messages: dict[tuple[str, int, int], dict[int, list[PendingCall]]] = {}
    for rank, record in by_rank.items():
        for call in record.pending:
            if call.peer is None:
                collectives.setdefault((call.communicator, call.sequence), {})[rank] = call
            else:
                ends = (rank, call.peer) if call.operation == "send" else (call.peer, rank)
                both = messages.setdefault((call.communicator, *ends), {})
                both.setdefault(rank, []).append(call)
    found = [
        _collective(key, calls, by_rank, frontiers, key[0] in with_messages)
        for key, calls in sorted(collectives.items())
    ]
    for (communicator, sender, receiver), both in sorted(messages.items()):
        frontier = frontiers[communicator, min(both)]
        found += _messages(frontier, (sender, receiver), both, by_rank)
    return tuple(found)


def _collective(
    key: tuple[str, int],
    calls: dict[int, PendingCall],
    by_rank: Mapping[int, RankRecord],
    frontiers: Mapping[tuple[str, int], Frontier],
    has_messages: bool,
) -> Operation:
    communicator, sequence = key
    frontier = frontiers[communicator, min(calls)]
    finished, absent, gone = [], [], []
    for rank in sorted(set(frontier.members) - set(calls)):
        own = frontiers.get((communicator, rank))
        if rank not in by_rank:
            gone.append(rank)
        elif own is None or own.issued is None or (has_messages and not own.is_counted):
            absent.append(rank)
        elif own.issued >= sequence:
            finished.append(rank)
        else:
            absent.append(rank)
    names = [call.operation for _, call in sorted(calls.items())]
    return Operation(
        communicator,
        frontier.description,
        sequence,
        max(sorted(set(names)), key=names.count),
        frontier.members,
        dict(sorted(calls.items())),
        tuple(finished),
        tuple(absent),
        tuple(gone),
    )


def _messages(
    frontier: Frontier,
    ends: tuple[int, int],
    both: Mapping[int, list[PendingCall]],
    by_rank: Mapping[int, RankRecord],
) -> list[Operation]:
    """Pair the unfinished sends and receives between two ranks in their order, which is that of the transport."""
    result = []
    for index in range(max(len(calls) for calls in both.values())):
        calls = {rank: both[rank][index] for rank in sorted(both) if index < len(both[rank])}
        others = [rank for rank in ends if rank not in calls]
        result.append(
            Operation(
                frontier.communicator,
                frontier.description,
                min(call.sequence for call in calls.values()),
                "send",
                ends,
                calls,
                (),
                tuple(rank for rank in others if rank in by_rank),
                tuple(rank for rank in others if rank not in by_rank),
            )
        )
    return result


def _is_presumed(record: RankRecord, operation: Operation) -> bool:
    """Say whether a rank counts as absent only because nothing says how far it has come."""
    known = [f for f in record.frontiers if f.communicator == operation.communicator]
    return not known or known[0].issued is None or known[0].issued >= operation.sequence


def _is_ahead(operation: Operation) -> bool:
    return (
        operation.operation in SYNCHRONISING and bool(operation.finished) and bool(operation.absent)
    )


def _stopped_devices(operations: tuple[Operation, ...]) -> dict[int, tuple[int, float]]:
    """Return the ranks whose device has stopped, with the number of the operation that shows it and how surely."""
    stopped: dict[int, tuple[int, float]] = {}
    shown: dict[tuple[str, int], list[int]] = {}
    for number, op in enumerate(operations):
        if op.operation in SYNCHRONISING and op.finished and not op.absent:
            for rank in op.calls:
                shown.setdefault((op.communicator, rank), []).append(number)
    first: dict[tuple[str, int], int] = {}
    for op in operations:
        for rank, call in op.calls.items():
            if call.peer is None:
                key = (op.communicator, rank)
                first[key] = min(first.get(key, op.sequence), op.sequence)
    for (communicator, rank), numbers in sorted(shown.items()):
        last = operations[numbers[-1]]
        certainty = 0.9 if last.sequence > first[communicator, rank] else 0.6
        if certainty < 0.9 and len(last.calls) > 1:
            continue
        if rank not in stopped or certainty > stopped[rank][1]:
            stopped[rank] = (numbers[0], certainty)
    return stopped


def _wait_graph(
    by_rank: Mapping[int, RankRecord],
    operations: tuple[Operation, ...],
    stopped: Mapping[int, tuple[int, float]],
) -> _Waits:
    waits = _Waits()
    mismatched = _mismatched(operations)
    calls: dict[int, list[tuple[int, int]]] = {}
    for number, op in enumerate(operations):
        point = (Kind.OPERATION, number)
        waits.edges.setdefault(point, [])
        if number in mismatched:
            waits.add(point, (Kind.MISMATCH, number), -1)
            continue
        for rank in op.absent:
            waits.add(point, (Kind.HOST, rank), rank)
        for rank in op.gone:
            waits.add(point, (Kind.GONE, rank), rank)
        for rank, call in op.calls.items():
            calls.setdefault(rank, []).append((call.order, number))
            if rank in stopped and op.operation in SYNCHRONISING and op.finished:
                waits.add(point, (Kind.DEVICE, rank), rank)
    for rank, made in sorted(calls.items()):
        numbers = [number for _, number in sorted(made)]
        if (Kind.HOST, rank) in waits.edges:
            waits.add((Kind.HOST, rank), (Kind.OPERATION, numbers[-1]), rank)
        for before, number in zip(numbers, numbers[1:], strict=False):
            # What the device has begun waits for nothing before it.
            if not operations[number].calls[rank].is_started and number not in mismatched:
                waits.add((Kind.OPERATION, number), (Kind.OPERATION, before), rank)
        _hold_up(waits, operations, numbers[0], rank)
    return waits


def _hold_up(waits: _Waits, operations: tuple[Operation, ...], number: int, rank: int) -> None:
    """Add that a rank's device has not begun its first call while another member's has."""
    op = operations[number]
    has_begun = any(call.is_started for call in op.calls.values())
    if has_begun and not op.calls[rank].is_started and not op.absent and not op.gone:
        waits.add((Kind.OPERATION, number), (Kind.DEVICE, rank), rank)


def _mismatched(operations: tuple[Operation, ...]) -> set[int]:
    """Return the first operation of each communicator on which its members do not agree."""
    first: dict[str, int] = {}
    for number, op in enumerate(operations):
        if op.communicator not in first and len(_versions(op)) > 1:
            first[op.communicator] = number
    return set(first.values())


def _versions(operation: Operation) -> dict[tuple[str, int | None, str], list[int]]:
    """Return the ranks by what they called; a message has two sides and one version."""
    versions: dict[tuple[str, int | None, str], list[int]] = {}
    for rank, call in operation.calls.items():
        if call.peer is None:
            versions.setdefault((call.operation, call.elements, call.dtype), []).append(rank)
    return versions


def _blames(
    part: list[Point],
    waits: _Waits,
    operations: tuple[Operation, ...],
    stopped: Mapping[int, tuple[int, float]],
    is_presumed: bool,
) -> list[Blame]:
    """Return who is to blame for one end of the waiting; nobody for an operation that all have joined."""
    if len(part) > 1:
        return [_cycle(part, waits, operations)]
    kind, key = part[0]
    held = [
        operations[source[1]]
        for source, targets in waits.edges.items()
        if source[0] == Kind.OPERATION and part[0] in targets
    ]
    match kind:
        case Kind.HOST:
            return [Blame(Reason.NOT_JOINED, (key,), _widest(held), 0.6 if is_presumed else 0.95)]
        case Kind.GONE:
            return [Blame(Reason.RANK_GONE, (key,), _widest(held), 0.6)]
        case Kind.DEVICE:
            certainty = stopped[key][1] if key in stopped else 0.75
            return [Blame(Reason.GPU_HANG, (key,), _widest(held), certainty)]
        case Kind.MISMATCH:
            odd, certainty = _minority(list(_versions(operations[key]).values()))
            return [Blame(Reason.COLLECTIVE_MISMATCH, odd, operations[key], certainty)]
    return []


def _widest(operations: list[Operation]) -> Operation:
    """Return the operation that holds up most ranks, the oldest of them."""
    return min(
        operations,
        key=lambda op: (-len(op.members), op.since_unix_ns, op.communicator, op.sequence),
    )


def _minority(groups: list[list[int]]) -> tuple[tuple[int, ...], float]:
    """Return the ranks outside the largest group if that is more than half of all, else all; and how surely."""
    largest = max(len(group) for group in groups)
    everyone = sorted(rank for group in groups for rank in group)
    if 2 * largest > len(everyone) and len(groups) > 1:
        return tuple(r for group in groups if len(group) < largest for r in sorted(group)), 0.9
    return tuple(everyone), 0.7


def _cycle(part: list[Point], waits: _Waits, operations: tuple[Operation, ...]) -> Blame:
    inside = set(part)
    order: dict[int, set[tuple[Point, Point]]] = {}
    is_sure = True
    for source in part:
        for target in waits.edges[source]:
            if target in inside:
                for rank in waits.ranks[source, target]:
                    order.setdefault(rank, set()).add((source, target))
                is_sure = is_sure and not (
                    source[0] == target[0] == Kind.OPERATION
                    and operations[source[1]].communicator != operations[target[1]].communicator
                )
    by_order: dict[frozenset[tuple[Point, Point]], list[int]] = {}
    for rank, edges in sorted(order.items()):
        # Hosts are one a rank: what counts is between which operations each stands.
        between = frozenset(
            tuple(p if p[0] == Kind.OPERATION else (Kind.HOST, -1) for p in edge) for edge in edges
        )
        by_order.setdefault(between, []).append(rank)  # type: ignore[arg-type]
    odd, certainty = _minority(list(by_order.values()))
    ring = tuple(
        sorted(
            (operations[number] for kind, number in part if kind == Kind.OPERATION),
            key=lambda op: (op.communicator, op.sequence),
        )
    )
    return Blame(
        Reason.COLLECTIVE_DEADLOCK,
        odd,
        _widest(list(ring)),
        certainty if is_sure else min(certainty, 0.7),
        ring,
    )


def _merge(blames: list[Blame]) -> tuple[Blame, ...]:
    """Return one blame a reason, but one each for mismatches and cycles; the surest first."""
    merged: dict[tuple[Reason, str, int], Blame] = {}
    for blame in blames:
        is_own = blame.reason in (Reason.COLLECTIVE_MISMATCH, Reason.COLLECTIVE_DEADLOCK)
        op = blame.operation
        key = (blame.reason, op.communicator, op.sequence) if is_own else (blame.reason, "", 0)
        known = merged.get(key)
        if known is None:
            merged[key] = blame
            continue
        merged[key] = Blame(
            blame.reason,
            tuple(sorted({*known.ranks, *blame.ranks})),
            _widest([known.operation, op]),
            min(known.certainty, blame.certainty),
            known.cycle,
        )
    return tuple(sorted(merged.values(), key=lambda b: (-b.certainty, str(b.reason), b.ranks)))
