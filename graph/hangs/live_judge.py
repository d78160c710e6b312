"""Who holds up a job in which no rank makes progress, from what its ranks report live.

    reports of communicators      as flight-recorder dumps: who has not called what the others wait in
    stages before the first step  who has not come to init_process_group, who was never started
    stacks alone                  who does not stand in a collective while most others do, or alone in another one

and of those who hold it up: what they do instead. Where one of them is at work, the job waits for work and does not
hang. Pure but for `LiveEvidence.read_stacks`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from rootwalk.graph.hangs import frames as of
from rootwalk.graph.hangs.flight_records import RankRecord
from rootwalk.graph.hangs.judge import Blame, Hang, find_hang
from rootwalk.graph.hangs.live_evidence import LiveEvidence
from rootwalk.graph.hangs.live_records import to_records
from rootwalk.graph.hangs.occupation import (
    Doing,
    Occupation,
    is_receiving,
    is_transferring,
    occupation_of,
)
from rootwalk.graph.hangs.operations import Operation
from rootwalk.graph.hangs.pseudo_operations import pseudo_hang, pseudo_operation
from rootwalk.graph.hangs.stuck import is_stuck
from rootwalk.graph.reasons import Reason
from rootwalk.instrumentation.semconv import TrainingProgressStage

__all__ = ["Basis", "Judgement", "judge"]

# Priors, fitted on nothing: how surely each kind of evidence says who holds up the others.
ALL_CALLED: Final = 0.6  # the transport, or a device that does not say so
BY_STACKS_ALONE: Final = 0.6
NOT_ARRIVED: Final = 0.9
NEVER_SEEN: Final = 0.6  # its host may not be watched
MESSAGES_ALONE: Final = 0.6
OTHER_CALL: Final = 0.7  # which of the two was meant is not known
OTHER_PLACE: Final = (
    0.45  # a rank that is one call ahead of a transfer that broke off stands elsewhere too
)
# Before the first step, seconds: connections between all ranks are made, and hosts may still come up.
START_PATIENCE_S: Final = 60.0
NEVER_SEEN_PATIENCE_S: Final = 30.0
# What ranks do is looked into of so many that hold up others; more of them are seldom different.
MAX_LOOKED_INTO: Final = 32
# Backends that move data by the host: no device can hold them up.
HOST_BACKENDS: Final = frozenset(("gloo", "mpi", "ucc"))
RENDEZVOUS: Final = "init_process_group"
COLLECTIVE: Final = "collective"
MESSAGE: Final = "recv"


class Basis(StrEnum):
    """What a judgement rests on."""

    NOTHING = "nothing"
    COLLECTIVES = "collectives"
    MESSAGES = "messages"
    START = "start"
    STACKS = "stacks"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is known of a job in which no rank makes progress.

    Attributes:
        evidence: What it rests on.
        is_stuck: Whether it has lasted longer than is usual for the job.
        basis: Which part of the evidence says who waits for whom.
        hang: Operations and blames; blames are empty where nothing shows who holds up the job.
        records: What the ranks have called, where that is the basis.
        occupations: What those do that hold up others, by rank.
        is_waiting_for_work: Whether one of them is at work.
    """

    evidence: LiveEvidence
    is_stuck: bool
    basis: Basis
    hang: Hang
    records: tuple[RankRecord, ...] = ()
    occupations: Mapping[int, Occupation] = field(default_factory=dict)
    is_waiting_for_work: bool = False

    @property
    def is_hang(self) -> bool:
        """Whether a finding stands: the job is stuck, somebody or something is to blame, and nobody is at work."""
        return self.is_stuck and not self.is_waiting_for_work and bool(self.hang.blames)

    @property
    def operation(self) -> Operation | None:
        """The operation that shows it best; None where nobody is seen to wait in one."""
        if self.hang.blames:
            return self.hang.blames[0].operation
        return min(
            self.hang.operations,
            key=lambda o: (-len(o.absent), -len(o.calls), o.since_unix_ns, o.communicator),
            default=None,
        )


def judge(evidence: LiveEvidence) -> Judgement:
    """Return who or what holds up a job, as far as the evidence says."""
    found = (
        _by_start(evidence) or _by_calls(evidence) or _by_messages(evidence) or _by_stacks(evidence)
    )
    if found is None:
        nobody = pseudo_hang(evidence, None, ())
        found = Judgement(evidence, is_stuck=False, basis=Basis.NOTHING, hang=nobody)
    return replace(found, is_stuck=is_stuck(evidence))


def _by_calls(evidence: LiveEvidence) -> Judgement | None:
    """Return what the calls of all ranks say; None where nobody waits in a collective."""
    records = [r for r in to_records(evidence) if r.rank not in evidence.ends]
    if not any(record.pending for record in records):
        return None
    bad = {rank: end.is_bad for rank, end in evidence.ends.items()}
    hang = find_hang(records, ends=bad)
    backends = {row.communicator: row.backend for row in evidence.communicators}
    blames = tuple(
        blame
        for blame in hang.blames
        if blame.reason is not Reason.GPU_HANG
        or backends.get(blame.operation.communicator) not in HOST_BACKENDS
    )
    blames = blames or _other_calls(evidence, hang.operations)
    roots = [rank for blame in blames if _is_absence(blame) for rank in blame.ranks]
    occupations = _look_into(evidence, roots)
    unseen = {row.rank for row in evidence.communicators if row.is_message and row.is_pending}
    unseen |= {r for r, o in occupations.items() if o.doing is Doing.IN_COLLECTIVE}
    refined = tuple(
        made for blame in blames for made in _refine(_without(blame, unseen), occupations)
    )
    is_even = bool(hang.operations) and not any(o.absent or o.gone for o in hang.operations)
    is_waiting_for_work = _is_at_work(occupations, roots, unseen)
    if not blames and is_even and _are_members_known(evidence, hang.operations):
        if _may_blame_transport(evidence):
            refined = (Blame(Reason.UNKNOWN_NET, (), _widest(hang.operations), ALL_CALLED),)
        is_waiting_for_work = is_waiting_for_work or _is_data_moving(evidence, hang.operations)
    hang = replace(hang, world=max(hang.world, evidence.world_size or 0))
    return Judgement(
        evidence,
        is_stuck=False,
        basis=Basis.COLLECTIVES,
        hang=_with_blames(hang, refined),
        records=tuple(records),
        occupations=occupations,
        is_waiting_for_work=is_waiting_for_work,
    )


def _other_calls(evidence: LiveEvidence, operations: Iterable[Operation]) -> tuple[Blame, ...]:
    """Return who called something else under a number, and has ended that, while others still wait there."""
    for operation in operations:
        ended = evidence.ended_calls.get((operation.communicator, operation.sequence), {})
        others = tuple(
            rank
            for rank in operation.finished
            if ended.get(rank, "") not in ("", operation.operation)
        )
        if others:
            calls = {
                rank: replace(next(iter(operation.calls.values())), operation=ended[rank])
                for rank in others
            }
            shown = replace(operation, calls={**operation.calls, **calls}, finished=())
            return (Blame(Reason.COLLECTIVE_MISMATCH, others, shown, OTHER_CALL),)
    return ()


def _is_absence(blame: Blame) -> bool:
    return blame.reason in (Reason.NOT_JOINED, Reason.RANK_GONE)


def _without(blame: Blame, ranks: Collection[int]) -> Blame:
    """Return a blame without ranks that wait in something whose other end is not reported."""
    if not _is_absence(blame):
        return blame
    return replace(blame, ranks=tuple(rank for rank in blame.ranks if rank not in ranks))


def _refine(blame: Blame, occupations: Mapping[int, Occupation]) -> list[Blame]:
    """Return a blame for each better reason, and one for the ranks of which nothing better is known."""
    if not blame.ranks:
        return []
    if not _is_absence(blame):
        return [blame]
    by_reason: dict[Reason, list[int]] = {}
    for rank in blame.ranks:
        occupation = occupations.get(rank)
        reason = (occupation.reason if occupation else None) or blame.reason
        by_reason.setdefault(reason, []).append(rank)
    made = []
    for reason, ranks in by_reason.items():
        known = [occupations[rank].certainty for rank in ranks if rank in occupations]
        is_gone = all(
            rank in occupations and occupations[rank].doing is Doing.GONE for rank in ranks
        )
        certainty = min(known, default=blame.certainty) if is_gone else blame.certainty
        if reason is not blame.reason and known and not is_gone:
            certainty = min(certainty, *known)
        made.append(replace(blame, reason=reason, ranks=tuple(ranks), certainty=certainty))
    return made


def _with_blames(hang: Hang, blames: Iterable[Blame]) -> Hang:
    ordered = tuple(sorted(blames, key=lambda b: (-b.certainty, str(b.reason), b.ranks)))
    blamed = {rank for blame in ordered for rank in blame.ranks}
    waiting = {rank for operation in hang.operations for rank in operation.calls}
    return replace(hang, blames=ordered, victims=tuple(sorted(waiting - blamed)))


def _look_into(evidence: LiveEvidence, ranks: Collection[int]) -> dict[int, Occupation]:
    """Return what some ranks do; the first of them where there are many."""
    chosen = sorted(set(ranks))[:MAX_LOOKED_INTO]
    stacks = evidence.read_stacks(chosen) if chosen else {}
    found = {}
    for rank in chosen:
        progress, end = evidence.ranks.get(rank), evidence.ends.get(rank)
        if progress is None and end is None and rank not in evidence.known:
            text = "was never started, or its host is not watched"
            found[rank] = Occupation(rank, Doing.NEVER_STARTED, text, certainty=NEVER_SEEN)
        else:
            found[rank] = occupation_of(rank, progress, stacks.get(rank, ()), end)
    return found


def _is_at_work(
    occupations: Mapping[int, Occupation], roots: Collection[int], unseen: Collection[int]
) -> bool:
    """Return whether a rank that holds up others is at work."""
    return any(
        occupations[rank].is_moving for rank in roots if rank in occupations and rank not in unseen
    )


def _are_members_known(evidence: LiveEvidence, operations: Iterable[Operation]) -> bool:
    return all(evidence.members[o.communicator][1] for o in operations)


def _may_blame_transport(evidence: LiveEvidence) -> bool:
    """Return whether all have called long enough ago: at a job's start connections take their time."""
    has_trained = any(
        rank.last.stage == TrainingProgressStage.TRAINING and rank.last.usual_s is not None
        for rank in evidence.ranks.values()
    )
    return has_trained or evidence.last_step is not None or evidence.idle_s >= START_PATIENCE_S


def _is_data_moving(evidence: LiveEvidence, operations: Iterable[Operation]) -> bool:
    """Return whether a transfer is slow and not stuck: most of those that wait in it still receive."""
    waiting = {rank for operation in operations for rank in operation.calls}
    told = [evidence.ranks[rank] for rank in waiting if rank in evidence.ranks]
    # The kernel does not count what sockets receive; only gloo's threads wait without using CPU.
    is_gloo = {row.backend for row in evidence.communicators} == {"gloo"}
    moving = sum(is_transferring(rank) if is_gloo else is_receiving(rank) for rank in told)
    return 2 * moving >= len(told) > 0


def _widest(operations: Iterable[Operation]) -> Operation:
    return min(
        operations, key=lambda o: (-len(o.members), o.since_unix_ns, o.communicator, o.sequence)
    )


def _by_start(evidence: LiveEvidence) -> Judgement | None:
    """Return who has not come to `init_process_group`; None where nobody waits there."""
    stages = {rank: told.last.stage for rank, told in evidence.ranks.items()}
    live = {rank for rank in stages if rank not in evidence.ends}
    arrived = {rank for rank in live if stages[rank] == TrainingProgressStage.RENDEZVOUS}
    if not arrived:
        return None
    passed = {
        rank
        for rank in live - arrived
        if stages[rank] in (TrainingProgressStage.INITIALISED, TrainingProgressStage.TRAINING)
    }
    world = set(range(evidence.world_size)) if evidence.world_size else set(evidence.known)
    absent = tuple(sorted((world | set(evidence.known)) - arrived - passed))
    never_seen = {rank for rank in absent if rank not in evidence.known}
    operation = pseudo_operation(evidence, RENDEZVOUS, arrived, absent)
    occupations = _look_into(evidence, absent)
    seen = tuple(rank for rank in absent if rank not in never_seen)
    blames: list[Blame] = []
    if seen:
        blames += _refine(Blame(Reason.NOT_JOINED, seen, operation, NOT_ARRIVED), occupations)
    if never_seen and evidence.idle_s >= NEVER_SEEN_PATIENCE_S:
        ranks = tuple(sorted(never_seen))
        blames.append(Blame(Reason.NOT_JOINED, ranks, operation, NEVER_SEEN))
    hang = pseudo_hang(evidence, operation, ())
    return Judgement(
        evidence,
        is_stuck=False,
        basis=Basis.START,
        hang=_with_blames(hang, blames),
        occupations=occupations,
        is_waiting_for_work=_is_at_work(occupations, absent, ()),
    )


def _by_messages(evidence: LiveEvidence) -> Judgement | None:
    """Return who waits for nothing while others wait for messages; None where nobody waits for one."""
    rows = [
        row for row in evidence.communicators if row.is_message and row.rank not in evidence.ends
    ]
    waiting = {row.rank: row for row in rows if row.is_pending}
    if not waiting:
        return None
    first = min(waiting.values(), key=lambda row: (-(row.pending_s or 0.0), row.rank))
    name = first.communicator
    members = set(evidence.members.get(name, ((), False))[0]) | {row.rank for row in rows}
    odd = tuple(sorted(members - waiting.keys()))
    operation = pseudo_operation(
        evidence, first.operation or MESSAGE, set(waiting), odd, name, evidence.names.get(name, "")
    )
    return _odd_ones_out(evidence, Basis.MESSAGES, operation, odd, MESSAGES_ALONE)


def _by_stacks(evidence: LiveEvidence) -> Judgement | None:
    """Return who does not stand in a collective while others do; None without stacks."""
    inside: set[int] = set()
    arriving: set[int] = set()
    outside: set[int] = set()
    for group in evidence.stack_groups:
        if of.is_in_rendezvous(group.frames):
            arriving.update(group.ranks)
        elif of.is_in_collective(group.frames):
            inside.update(group.ranks)
        else:
            outside.update(group.ranks)
    outside |= {rank for rank in evidence.ends if rank in evidence.known}
    outside -= {rank for rank in inside | arriving if rank not in evidence.ends}
    waiting = {rank for rank in inside or arriving if rank not in evidence.ends}
    if not waiting:
        return None
    name = COLLECTIVE if inside else RENDEZVOUS
    odd = set(outside)
    if inside:
        odd |= arriving
    elif evidence.world_size and evidence.idle_s >= NEVER_SEEN_PATIENCE_S:
        odd |= set(range(evidence.world_size)) - evidence.known
    silent = evidence.known - waiting - odd
    operation = pseudo_operation(evidence, name, waiting, tuple(sorted(odd)))
    # Of silent ranks there is no stack: then nothing is said of the transport.
    if not odd and not silent and inside and len(waiting) > 1:
        places = _places(evidence, waiting)
        if len(places) > 1:
            return _in_other_calls(evidence, operation, places)
        blames = (
            (Blame(Reason.UNKNOWN_NET, (), operation, BY_STACKS_ALONE),)
            if _may_blame_transport(evidence)
            else ()
        )
        hang = _with_blames(pseudo_hang(evidence, operation, ()), blames)
        is_moving = _is_data_moving(evidence, [operation])
        return Judgement(
            evidence, is_stuck=False, basis=Basis.STACKS, hang=hang, is_waiting_for_work=is_moving
        )
    return _odd_ones_out(evidence, Basis.STACKS, operation, tuple(sorted(odd)), BY_STACKS_ALONE)


def _places(evidence: LiveEvidence, ranks: set[int]) -> dict[tuple[str, str], set[int]]:
    """Return ranks by the call of their program that they wait in; those whose program is not seen are left out."""
    found: dict[tuple[str, str], set[int]] = {}
    for group in evidence.stack_groups:
        call = of.call_of(group.frames)
        if call is not None and not ranks.isdisjoint(group.ranks):
            found.setdefault(call, set()).update(rank for rank in group.ranks if rank in ranks)
    return found


def _in_other_calls(
    evidence: LiveEvidence, operation: Operation, places: Mapping[tuple[str, str], Collection[int]]
) -> Judgement:
    """Return who is alone in a call that needs others; nobody where each call has several ranks, as groups may have.

    Then the transport is not blamed either: not all have called the same. Of messages it is no wonder.
    """
    is_message = any(function in of.MESSAGE_FUNCTIONS for function, _ in places)
    alone = sorted(next(iter(ranks)) for ranks in places.values() if len(ranks) == 1)
    blames: tuple[Blame, ...] = ()
    if alone and not is_message:
        waiting = replace(
            operation,
            calls={
                rank: replace(operation.calls[rank], operation=function)
                for (function, _), ranks in sorted(places.items())
                for rank in sorted(ranks)
            },
        )
        blames = (Blame(Reason.COLLECTIVE_MISMATCH, tuple(alone), waiting, OTHER_PLACE),)
    return Judgement(
        evidence,
        is_stuck=False,
        basis=Basis.STACKS,
        hang=_with_blames(pseudo_hang(evidence, operation, ()), blames),
        occupations=_look_into(evidence, alone),
        is_waiting_for_work=_is_data_moving(evidence, [operation]),
    )


def _odd_ones_out(
    evidence: LiveEvidence,
    basis: Basis,
    operation: Operation,
    odd: tuple[int, ...],
    certainty: float,
) -> Judgement:
    """Return a judgement that blames those who do not wait as the others do."""
    occupations = _look_into(evidence, odd)
    in_others = {r for r, o in occupations.items() if o.doing is Doing.IN_COLLECTIVE}
    blame = Blame(
        Reason.NOT_JOINED, tuple(r for r in odd if r not in in_others), operation, certainty
    )
    hang = _with_blames(pseudo_hang(evidence, operation, ()), _refine(blame, occupations))
    return Judgement(
        evidence,
        is_stuck=False,
        basis=basis,
        hang=hang,
        occupations=occupations,
        is_waiting_for_work=_is_at_work(occupations, odd, in_others),
    )
