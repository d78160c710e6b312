"""Why a job hangs, from what every rank recorded: what waits for what, and where the waiting ends.

    operation --not issued by--------> host of a rank --its last calls--> operation
              --queued behind--------> the rank's call before it
              --ended at its peers---> device of a rank
              --no dump--------------> rank that is gone

Points without a way out are to blame; all ranks that lead to them are victims. Pure: no store, no text. Why the rules
hold for any job:

- A host that has no unfinished call waits for no other rank; if others wait for its call, it is to blame.
- A host with unfinished calls may wait for the last of them, and a device may take calls in the order in which they
  were issued: so blame moves on along both. Neither must be so, since communicators run beside each other; blame that
  moves on needlessly ends at a rank that holds up others as well, and cycles made so are less sure. Sends are mostly
  left to themselves: calls wait for an earlier send only where the transport keeps the order, between the same two
  ranks.
- What a peer has finished of an operation that synchronises, every member's device has begun; and in one communicator
  a device begins a call when the one before has ended. So where a record has as unfinished what came before something
  that a peer has finished, that rank's device no longer answers: PyTorch asks it when it writes the dump. With no
  operation between, the last part may be on its way; then a rank is blamed only if it is the only one, and less surely.
- Where the recorder times the device and some members have begun an operation that all have issued, those that have
  not, with nothing before it, are held up by what else their device does.
- A rank without a dump may be a victim whose file is not here: it is blamed only where nothing surer is found.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from rootwalk.graph.flight_records import PendingCall, RankRecord
from rootwalk.graph.hang_operations import Operation, find_operations
from rootwalk.graph.reasons import Reason
from rootwalk.graph.wait_graph import final_parts

__all__ = ["Blame", "Hang", "find_hang"]

# How surely each kind of proof says who is to blame: priors, as no public set of labelled hangs is large enough to fit.
ISSUED_LESS: Final = 0.95
NO_MESSAGE: Final = 0.6  # a small one may have ended on the sender's side
NOT_SEEN: Final = 0.6
ENDED_BEFORE: Final = 0.9
ENDED_ONCE: Final = 0.6
NOT_BEGUN: Final = 0.75
NO_DUMP: Final = 0.6
MAJORITY: Final = 0.9
NO_MAJORITY: Final = 0.7


class Kind(IntEnum):
    """What a point of the graph is."""

    OPERATION = 0
    HOST = 1
    DEVICE = 2
    GONE = 3
    MISMATCH = 4


# Kind, and the rank or the operation's place in the list.
Point = tuple[Kind, int]


@dataclass(frozen=True, slots=True)
class Blame:
    """One reason with the ranks that it holds for.

    Attributes:
        reason: Code of the contract.
        ranks: Who is to blame, ascending.
        operation: The operation that shows it best.
        certainty: 0 to 1, how surely the dumps say so.
        cycle: The operations of a cyclic wait; empty for other reasons.
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
        torn: Operations that have ended at some ranks and are not begun at others, though they need all: the dumps are
            not of one moment.
        world: Ranks of the job.
    """

    operations: tuple[Operation, ...]
    blames: tuple[Blame, ...]
    victims: tuple[int, ...]
    missing: tuple[int, ...]
    torn: int
    world: int


@dataclass(slots=True)
class _Waits:
    """The graph under construction, and which ranks make each of its edges."""

    targets: dict[Point, list[Point]] = field(default_factory=dict)
    sources: dict[Point, list[Point]] = field(default_factory=dict)
    ranks: dict[tuple[Point, Point], set[int]] = field(default_factory=dict)

    def add(self, source: Point, target: Point, rank: int) -> None:
        self.targets.setdefault(source, []).append(target)
        self.targets.setdefault(target, [])
        self.sources.setdefault(target, []).append(source)
        self.ranks.setdefault((source, target), set()).add(rank)


def find_hang(records: Iterable[RankRecord]) -> Hang:
    """Return what hangs and why, from one record a rank."""
    by_rank = {record.rank: record for record in records}
    operations = find_operations(by_rank)
    stopped = _stopped_devices(operations)
    waits = _wait_graph(operations, stopped)
    blames = [
        blame
        for part in final_parts(waits.targets)
        for blame in [_blame(part, waits, operations, stopped)]
        if blame is not None
    ]
    merged = _merge(blames)
    if any(blame.certainty > NO_DUMP for blame in merged):
        merged = tuple(blame for blame in merged if blame.reason is not Reason.RANK_GONE)
    world = {rank for r in by_rank.values() for f in r.frontiers for rank in f.members}
    waiting = {rank for operation in operations for rank in operation.calls}
    blamed = {rank for blame in merged for rank in blame.ranks}
    return Hang(
        operations=operations,
        blames=merged,
        victims=tuple(sorted(waiting - blamed)),
        missing=tuple(sorted(world - set(by_rank))),
        torn=sum(operation.is_torn for operation in operations),
        world=len(world | set(by_rank)),
    )


def _stopped_devices(operations: tuple[Operation, ...]) -> dict[int, float]:
    """Return the ranks whose device no longer answers, and how surely."""
    shown: dict[tuple[str, int], Operation] = {}
    first: dict[tuple[str, int], int] = {}
    for operation in operations:
        for rank, call in operation.calls.items():
            if call.peer is None:
                key = (operation.communicator, rank)
                first.setdefault(key, operation.sequence)
                if operation.is_synchronising and operation.finished and not operation.absent:
                    shown[key] = operation
    stopped: dict[int, float] = {}
    for (communicator, rank), last in sorted(shown.items()):
        if last.sequence > first[communicator, rank]:
            stopped[rank] = ENDED_BEFORE
        elif len(last.calls) == 1:
            stopped.setdefault(rank, ENDED_ONCE)
    return stopped


def _wait_graph(operations: tuple[Operation, ...], stopped: Mapping[int, float]) -> _Waits:
    waits = _Waits()
    mismatched = _mismatched(operations)
    calls: dict[int, list[tuple[PendingCall, int]]] = {}
    for number, operation in enumerate(operations):
        point = (Kind.OPERATION, number)
        waits.targets.setdefault(point, [])
        for rank, call in operation.calls.items():
            calls.setdefault(rank, []).append((call, number))
        if number in mismatched:
            waits.add(point, (Kind.MISMATCH, number), -1)
            continue
        for rank in operation.absent:
            waits.add(point, (Kind.HOST, rank), rank)
        for rank in operation.gone:
            waits.add(point, (Kind.GONE, rank), rank)
        if operation.is_synchronising and operation.finished:
            for rank in sorted(set(operation.calls) & set(stopped)):
                waits.add(point, (Kind.DEVICE, rank), rank)
    for rank, made in sorted(calls.items()):
        _add_order(waits, rank, sorted(made, key=lambda item: item[0].order), mismatched)
        first = min(made, key=lambda item: item[0].order)[1]
        if first not in mismatched:
            _add_held_up(waits, rank, operations, first)
    return waits


def _add_order(
    waits: _Waits, rank: int, calls: list[tuple[PendingCall, int]], mismatched: set[int]
) -> None:
    """Add that a rank's calls wait for those before them, and its host for the last ones."""
    batches = [
        list(batch)
        for _, batch in itertools.groupby(
            calls, key=lambda item: (item[0].communicator, item[0].peer is None, item[0].sequence)
        )
    ]
    if (Kind.HOST, rank) in waits.targets:
        for _, number in batches[-1]:
            waits.add((Kind.HOST, rank), (Kind.OPERATION, number), rank)
    before: list[int] = []
    last_sends: dict[tuple[str, int | None], int] = {}
    for batch in batches:
        for call, number in batch:
            # What the device has begun waits for nothing before it; of a mismatch no more is known.
            if call.is_started or number in mismatched:
                continue
            send = last_sends.get((call.communicator, call.peer))
            for target in [*before, *([] if call.peer is None or send is None else [send])]:
                waits.add((Kind.OPERATION, number), (Kind.OPERATION, target), rank)
        before = [number for call, number in batch if call.operation != "send"] or before
        for call, number in batch:
            if call.operation == "send":
                last_sends[call.communicator, call.peer] = number


def _add_held_up(waits: _Waits, rank: int, operations: tuple[Operation, ...], number: int) -> None:
    """Add that a rank's device has not begun its first unfinished call while another member's has."""
    operation = operations[number]
    has_begun = any(call.is_started for call in operation.calls.values())
    is_joined = not operation.absent and not operation.gone
    if has_begun and is_joined and not operation.calls[rank].is_started:
        waits.add((Kind.OPERATION, number), (Kind.DEVICE, rank), rank)


def _mismatched(operations: tuple[Operation, ...]) -> set[int]:
    """Return the first operation of each communicator on which its members do not agree."""
    first: dict[str, int] = {}
    for number, operation in enumerate(operations):
        if operation.communicator not in first and len(_versions(operation)) > 1:
            first[operation.communicator] = number
    return set(first.values())


def _versions(operation: Operation) -> list[list[int]]:
    """Return the ranks by what they called; a message has two sides and one version."""
    versions: dict[tuple[str, int | None, str], list[int]] = {}
    for rank, call in operation.calls.items():
        if call.peer is None:
            versions.setdefault((call.operation, call.elements, call.dtype), []).append(rank)
    return list(versions.values())


def _blame(
    part: list[Point],
    waits: _Waits,
    operations: tuple[Operation, ...],
    stopped: Mapping[int, float],
) -> Blame | None:
    """Return who is to blame for one end of the waiting; nobody for an operation that all have joined."""
    if len(part) > 1:
        return _cycle(part, waits, operations)
    kind, key = part[0]
    if kind is Kind.OPERATION:
        return None
    held = [operations[number] for _, number in waits.sources[part[0]]]
    match kind:
        case Kind.HOST:
            return Blame(Reason.NOT_JOINED, (key,), _widest(held), _absence(key, held))
        case Kind.GONE:
            return Blame(Reason.RANK_GONE, (key,), _widest(held), NO_DUMP)
        case Kind.DEVICE:
            return Blame(Reason.GPU_HANG, (key,), _widest(held), stopped.get(key, NOT_BEGUN))
        case _:
            odd, certainty = _minority(_versions(operations[key]))
            return Blame(Reason.COLLECTIVE_MISMATCH, odd, operations[key], certainty)


def _absence(rank: int, held: list[Operation]) -> float:
    """Return how surely a rank has not issued what others wait for."""
    return max(
        NOT_SEEN
        if rank in operation.presumed
        else NO_MESSAGE
        if operation.is_message
        else ISSUED_LESS
        for operation in held
    )


def _widest(operations: list[Operation]) -> Operation:
    """Return the operation of most ranks, the oldest of them."""
    return min(
        operations,
        key=lambda o: (-len(o.members), o.since_unix_ns, o.communicator, o.sequence, o.members),
    )


def _minority(groups: list[list[int]]) -> tuple[tuple[int, ...], float]:
    """Return the ranks outside the group that has more than half of all, else all of them; and how surely."""
    everyone = sorted(rank for group in groups for rank in group)
    largest = max(groups, key=len)
    if len(groups) > 1 and 2 * len(largest) > len(everyone):
        return tuple(rank for rank in everyone if rank not in largest), MAJORITY
    return tuple(everyone), NO_MAJORITY


def _cycle(part: list[Point], waits: _Waits, operations: tuple[Operation, ...]) -> Blame:
    """Return the blame for operations that wait for each other: the ranks with another order than most, else all."""
    inside = set(part)
    orders: dict[int, set[tuple[int, int]]] = {}
    is_sure = True
    for source in part:
        for target in waits.targets[source]:
            if target not in inside:
                continue
            # Hosts are one a rank: what counts is between which operations each stands.
            ends = tuple(key if kind == Kind.OPERATION else -1 for kind, key in (source, target))
            for rank in waits.ranks[source, target]:
                orders.setdefault(rank, set()).add((ends[0], ends[1]))
            if -1 not in ends:
                names = {operations[end].communicator for end in ends}
                is_sure = is_sure and len(names) == 1
    by_order: dict[frozenset[tuple[int, int]], list[int]] = {}
    for rank, order in orders.items():
        by_order.setdefault(frozenset(order), []).append(rank)
    odd, certainty = _minority(list(by_order.values()))
    numbers = sorted(number for kind, number in part if kind == Kind.OPERATION)
    cycle = tuple(operations[number] for number in numbers)
    return Blame(
        Reason.COLLECTIVE_DEADLOCK,
        odd,
        _widest(list(cycle)),
        certainty if is_sure else min(certainty, NO_MAJORITY),
        cycle,
    )


def _merge(blames: list[Blame]) -> tuple[Blame, ...]:
    """Return one blame for the ranks that hold up one operation for one reason; the surest first."""
    merged: dict[tuple[Reason, str, int, tuple[int, ...]], Blame] = {}
    for blame in blames:
        operation = blame.operation
        key = (blame.reason, operation.communicator, operation.sequence, operation.members)
        known = merged.get(key)
        if known is not None:
            ranks = tuple(sorted({*known.ranks, *blame.ranks}))
            certainty = min(known.certainty, blame.certainty)
            blame = replace(blame, ranks=ranks, certainty=certainty)
        merged[key] = blame
    return tuple(sorted(merged.values(), key=lambda b: (-b.certainty, str(b.reason), b.ranks)))
