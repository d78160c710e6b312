"""Why a job hangs, from what every rank recorded: what waits for what, and where the waiting ends.

Points without a way out are to blame; all ranks that lead to them are victims. Pure: no store, no text; the
waiting itself is built by `waits`. Why the rules hold for any job:

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
- A receive that waits behind other calls of its rank may have its data, from a send that has ended: which send is its
  own is not known then, and neither what the sender has not called nor what that waits for is held against anybody.
- What a dump that is older than the others does not know is not held against its rank (`moments`).
- A rank without a dump may be a victim whose file is not here: it is blamed only where nothing surer is found, or where
  the host's sensor tells how its process ended.
- Gloo's dumps do not tell a call that failed from one that has ended: `broken_off`; nor all members: `membership`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from rootwalk.graph.hangs.broken_off import break_off, break_off_unsure
from rootwalk.graph.hangs.flight_records import RankRecord
from rootwalk.graph.hangs.host_waits import HostWait
from rootwalk.graph.hangs.membership import join_members
from rootwalk.graph.hangs.moments import Unlike, find_unlike
from rootwalk.graph.hangs.operations import Operation, find_operations, versions_of
from rootwalk.graph.hangs.ties import settle_ties
from rootwalk.graph.hangs.waits import Kind, Point, Waits, build_waits
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
ENDED_BADLY: Final = 0.95
MAJORITY: Final = 0.9
NO_MAJORITY: Final = 0.7
NO_PAIR: Final = (
    0.45  # of messages: the sends may have ended, and a device that has stopped looks the same
)


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
        unlike: Ranks whose dumps are not used, as they are not of one moment with the others.
        aside: Ranks with a dump, but none that is used: these, and those whose dumps contradict each other.
        world: Ranks of the job.
        host_waits: By rank, what it or its child waits for on its own (`forked`, `on_device`).
    """

    operations: tuple[Operation, ...]
    blames: tuple[Blame, ...]
    victims: tuple[int, ...]
    missing: tuple[int, ...]
    unlike: Unlike
    aside: frozenset[int]
    world: int
    host_waits: Mapping[int, HostWait] = field(default_factory=dict)


def find_hang(
    records: Iterable[RankRecord],
    unsettled: Collection[int] = (),
    ends: Mapping[int, bool] | None = None,
) -> Hang:
    """Return what hangs and why.

    Args:
        records: One a rank.
        unsettled: Ranks with dumps of which none can be used.
        ends: Ranks whose process has ended, as the host's sensor tells it: whether with a signal or an error.
    """
    ends = ends or {}
    all_ranks = {record.rank: record for record in records}
    unlike = find_unlike(all_ranks)
    aside = unlike.ranks | set(unsettled)
    told = join_members({rank: record for rank, record in all_ranks.items() if rank not in aside})
    is_waiting = any(record.pending for record in told.values())
    well = set() if is_waiting else {rank for rank, is_bad in ends.items() if not is_bad}
    by_rank = break_off(told, aside | well)
    operations = find_operations(by_rank)
    if not is_waiting and len(operations) == 1 and not any(ends.values()):
        operations = ()  # all have stopped at one place, and a dump is missing: the job may have ended there
    absent = {rank for operation in operations for rank in operation.absent}
    sure, by_rank = by_rank, break_off_unsure(by_rank, absent)
    if by_rank != sure:
        operations = find_operations(by_rank)
    stopped = _stopped_devices(operations)
    waits = build_waits(operations, stopped, aside)
    found = _blames(final_parts(waits.targets), waits, operations, stopped)
    found = settle_ties(found, operations, by_rank)
    merged = _merge(_with_ends(found, ends))
    if any(blame.certainty > NO_DUMP for blame in merged):
        merged = tuple(
            blame
            for blame in merged
            if blame.reason is not Reason.RANK_GONE or blame.certainty > NO_DUMP
        )
    # Records that were read together share their members.
    groups = {id(f.members): f.members for r in all_ranks.values() for f in r.frontiers}
    world = set(all_ranks).union(unsettled, *groups.values())
    waiting = {rank for operation in operations for rank in operation.calls}
    blamed = {rank for blame in merged for rank in blame.ranks}
    return Hang(
        operations=operations,
        blames=merged,
        victims=tuple(sorted(waiting - blamed)),
        missing=tuple(sorted(world - set(all_ranks) - aside)),
        unlike=unlike,
        aside=aside,
        world=len(world),
    )


def _with_ends(blames: list[Blame], ends: Mapping[int, bool]) -> list[Blame]:
    """Return the blames, those of ranks that are gone by how their processes ended; the others are victims then."""
    bad = {rank for rank, is_bad in ends.items() if is_bad}
    is_told = any(b.reason is Reason.RANK_GONE and bad & set(b.ranks) for b in blames)
    result = []
    for blame in blames:
        if blame.reason is not Reason.RANK_GONE:
            result.append(blame)
        elif not is_told or bad & set(blame.ranks):
            result.append(replace(blame, certainty=ENDED_BADLY if is_told else NO_DUMP))
    return result


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
        elif len(last.calls) == 1 and not last.gone:
            stopped.setdefault(rank, ENDED_ONCE)
    return stopped


def _blames(
    parts: list[list[Point]],
    waits: Waits,
    operations: tuple[Operation, ...],
    stopped: Mapping[int, float],
) -> list[Blame]:
    """Return who is to blame for the ends of the waiting; nobody for an operation that all have joined."""
    ends = {part[0] for part in parts if len(part) == 1}
    held: dict[Point, list[Operation]] = {}
    for (kind, key), targets in waits.targets.items():
        for target in targets if kind is Kind.OPERATION else ():
            if target in ends:
                held.setdefault(target, []).append(operations[key])
    blames = []
    for part in parts:
        if len(part) > 1:
            blames.append(_cycle(part, waits, operations))
        elif part[0] in held:
            blames += _blame(part[0], held[part[0]], operations, stopped)
    return blames


def _blame(
    end: Point,
    held: list[Operation],
    operations: tuple[Operation, ...],
    stopped: Mapping[int, float],
) -> list[Blame]:
    kind, key = end
    match kind:
        case Kind.HOST:
            return [Blame(Reason.NOT_JOINED, (key,), _widest(held), _absence(key, held))]
        case Kind.GONE:
            return [Blame(Reason.RANK_GONE, (key,), _widest(held), NO_DUMP)]
        case Kind.DEVICE:
            return [Blame(Reason.GPU_HANG, (key,), _widest(held), stopped.get(key, NOT_BEGUN))]
        case Kind.MISMATCH:
            odd, certainty = _minority(versions_of(operations[key].calls))
            return [Blame(Reason.COLLECTIVE_MISMATCH, odd, operations[key], certainty)]
        case Kind.OPERATION | Kind.TURN:
            return []
        case _:
            assert_never(kind)


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


def _cycle(part: list[Point], waits: Waits, operations: tuple[Operation, ...]) -> Blame:
    """Return the blame for operations that wait for each other: the ranks with another order than most, else all."""
    inside = set(part)
    # What of the cycle each rank has behind what: by its turns, and by its host where it has not issued an operation.
    behind: dict[Point, set[int]] = {}
    for kind, number in part:
        for target in waits.targets[kind, number] if kind is Kind.OPERATION else ():
            if target in inside:
                behind.setdefault(target, set()).add(number)
    orders: dict[int, set[tuple[Kind, frozenset[int], frozenset[int]]]] = {}
    is_sure = True
    for point, later in behind.items():
        kind, key = point
        earlier = {number for place, number in waits.targets[point] if (place, number) in inside}
        rank = waits.turn_ranks[key] if kind is Kind.TURN else key
        orders.setdefault(rank, set()).add((kind, frozenset(later), frozenset(earlier)))
        if kind is Kind.TURN:
            names = {operations[number].communicator for number in later | earlier}
            is_sure = is_sure and len(names) == 1
    by_order: dict[frozenset[tuple[Kind, frozenset[int], frozenset[int]]], list[int]] = {}
    for rank, order in orders.items():
        by_order.setdefault(frozenset(order), []).append(rank)
    odd, certainty = _minority(list(by_order.values()))
    cycle = tuple(operations[number] for kind, number in sorted(part) if kind is Kind.OPERATION)
    if not is_sure:
        certainty = min(certainty, NO_MAJORITY)
    sides = {len(operation.calls) for operation in cycle if operation.is_message}
    if sides:
        certainty = min(certainty, NO_PAIR if 2 in sides else NO_MESSAGE)
    return Blame(Reason.COLLECTIVE_DEADLOCK, odd, _widest(list(cycle)), certainty, cycle)


def _merge(blames: list[Blame]) -> tuple[Blame, ...]:
    """Return one blame for the ranks that hold up one operation for one reason; the surest first."""
    alike: dict[tuple[Reason, int], list[Blame]] = {}
    for blame in blames:
        alike.setdefault((blame.reason, id(blame.operation)), []).append(blame)
    merged = [
        replace(
            group[0],
            ranks=tuple(sorted({rank for blame in group for rank in blame.ranks})),
            certainty=min(blame.certainty for blame in group),
        )
        for group in alike.values()
    ]
    return tuple(sorted(merged, key=lambda b: (-b.certainty, str(b.reason), b.ranks)))
