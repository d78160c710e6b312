"""The waiting of a hang as a graph, from what every rank has not finished.

    operation --not issued by----------> host of a rank --its last calls--> operation
              --queued behind--> turn --the rank's calls before it--------> operation
              --ended at its peers-----> device of a rank
              --no dump----------------> rank that is gone

Why the edges hold for any job is said in `hang`. A turn stands for the calls that a rank issued at once, so that a
batch behind a batch takes as many edges as both have calls. Pure: nobody is blamed.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from rootwalk.graph.hangs.flight_records import PendingCall
from rootwalk.graph.hangs.operations import Operation, versions_of

__all__ = ["Kind", "Point", "Waits", "build_waits", "find_mismatched"]


class Kind(IntEnum):
    """What a point of the graph is."""

    OPERATION = 0
    HOST = 1
    DEVICE = 2
    GONE = 3
    MISMATCH = 4
    TURN = 5


# Kind, and the rank, or the place in the list of operations or of turns.
Point = tuple[Kind, int]
# A call and the place of its operation.
_Placed = tuple[PendingCall, int]


@dataclass(slots=True)
class Waits:
    """The graph: what each point waits for, and the rank of each turn."""

    targets: dict[Point, list[Point]] = field(default_factory=dict)
    turn_ranks: list[int] = field(default_factory=list)

    def add(self, source: Point, target: Point) -> None:
        """Let one point wait for another."""
        self.targets.setdefault(source, []).append(target)
        self.targets.setdefault(target, [])

    def add_turn(self, rank: int, numbers: Iterable[int]) -> Point:
        """Return a new point for calls that a rank has issued at once."""
        turn = (Kind.TURN, len(self.turn_ranks))
        self.turn_ranks.append(rank)
        self.targets[turn] = [(Kind.OPERATION, number) for number in numbers]
        return turn


def build_waits(
    operations: tuple[Operation, ...], stopped: Collection[int], aside: Collection[int]
) -> Waits:
    """Return what waits for what.

    Args:
        operations: Every one that some rank has not finished.
        stopped: Ranks whose device no longer answers.
        aside: Ranks whose dumps are not used, so that nothing can be said of them.
    """
    waits = Waits()
    mismatched = find_mismatched(operations)
    calls: dict[int, list[_Placed]] = {}
    for number, operation in enumerate(operations):
        waits.targets[Kind.OPERATION, number] = []
        for rank, call in operation.calls.items():
            calls.setdefault(rank, []).append((call, number))
    batches = {rank: _batches(made) for rank, made in sorted(calls.items())}
    behind = [
        found for rank, made in batches.items() for found in _queue(waits, rank, made, mismatched)
    ]
    # A receive that waits behind other calls may have its data, from a send that has ended. Then it is not known which
    # send is its own, and nothing that the sender waits for, or has not called, holds it up.
    unpaired = {
        number
        for rank, number, _ in behind
        if operations[number].is_message and rank == operations[number].members[1]
    }
    for rank, number, turn in behind:
        if number not in unpaired or rank != operations[number].members[0]:
            waits.targets[Kind.OPERATION, number].append(turn)
    for number, operation in enumerate(operations):
        if number in mismatched:
            waits.add((Kind.OPERATION, number), (Kind.MISMATCH, number))
        elif number not in unpaired or len(operation.calls) > 1:
            _add_members(waits, number, operation, stopped, aside)
    for rank, made in batches.items():
        for _, number in made[-1] if (Kind.HOST, rank) in waits.targets else ():
            waits.add((Kind.HOST, rank), (Kind.OPERATION, number))
    firsts = {rank: made[0][0][1] for rank, made in batches.items()}
    _add_held_up(waits, operations, firsts, mismatched)
    return waits


def _batches(calls: list[_Placed]) -> list[list[_Placed]]:
    """Return the calls of one rank in order, those together that were issued at once."""
    ordered = sorted(calls, key=lambda item: item[0].order)
    return [
        list(batch)
        for _, batch in itertools.groupby(
            ordered, key=lambda item: (item[0].communicator, item[0].peer is None, item[0].sequence)
        )
    ]


def _queue(
    waits: Waits, rank: int, batches: list[list[_Placed]], mismatched: Collection[int]
) -> Iterator[tuple[int, int, Point]]:
    """Yield which of a rank's calls wait for which turns before them: rank, operation, turn."""
    before: list[int] = []
    turn: Point | None = None
    sends: dict[tuple[str, int | None], int] = {}
    for batch in batches:
        for call, number in batch:
            # What the device has begun waits for nothing before it; of a mismatch no more is known.
            if call.is_started or number in mismatched:
                continue
            if before:
                turn = turn or waits.add_turn(rank, before)
                yield rank, number, turn
            send = sends.get((call.communicator, call.peer))
            if send is not None:
                yield rank, number, waits.add_turn(rank, [send])
        others = [number for call, number in batch if call.operation != "send"]
        if others:
            before, turn = others, None
        for call, number in batch:
            if call.operation == "send":
                sends[call.communicator, call.peer] = number


def _add_members(
    waits: Waits,
    number: int,
    operation: Operation,
    stopped: Collection[int],
    aside: Collection[int],
) -> None:
    """Add that an operation waits for members that have not issued it, are gone, or whose device has stopped."""
    point = (Kind.OPERATION, number)
    for rank in operation.absent:
        waits.add(point, (Kind.HOST, rank))
    for rank in operation.gone:
        if rank not in aside:
            waits.add(point, (Kind.GONE, rank))
    if operation.is_synchronising and operation.finished:
        for rank in operation.calls:
            if rank in stopped:
                waits.add(point, (Kind.DEVICE, rank))


def _add_held_up(
    waits: Waits,
    operations: tuple[Operation, ...],
    firsts: Mapping[int, int],
    mismatched: Collection[int],
) -> None:
    """Add which ranks' devices have not begun their first unfinished call while another member's has."""
    begun = {
        number
        for number in set(firsts.values()) - set(mismatched)
        if not operations[number].absent
        and not operations[number].gone
        and any(call.is_started for call in operations[number].calls.values())
    }
    for rank, number in firsts.items():
        if number in begun and not operations[number].calls[rank].is_started:
            waits.add((Kind.OPERATION, number), (Kind.DEVICE, rank))


def find_mismatched(operations: tuple[Operation, ...]) -> set[int]:
    """Return the first operation of each communicator on which its members do not agree."""
    first: dict[str, int] = {}
    for number, operation in enumerate(operations):
        if operation.communicator not in first and len(versions_of(operation.calls)) > 1:
            first[operation.communicator] = number
    return set(first.values())
