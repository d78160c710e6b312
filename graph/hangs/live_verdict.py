"""The verdict about a job in which no rank makes progress: its dependency graph, and what that says from the store.

job -slowed_by-> collective -waits_for-> rank            somebody has not called it
job -slowed_by-> collective -transfers_over-> network    all have, and it does not end
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rootwalk.graph.dependencies import DependencyGraph, node_id
from rootwalk.graph.hangs.judge import Blame
from rootwalk.graph.hangs.live_judge import Judgement
from rootwalk.graph.hangs.live_rules import live_rule_of
from rootwalk.graph.hangs.live_words import describe_blame, describe_rank, name_live_operation
from rootwalk.graph.hangs.operations import Operation
from rootwalk.graph.hangs.verdict import MAX_CYCLE, MAX_STACK_GROUPS
from rootwalk.graph.model import (
    Band,
    ChainLink,
    Confidence,
    DataQuality,
    EdgeKind,
    EdgePayload,
    Evidence,
    EvidenceView,
    Finding,
    FindingVictims,
    HangRank,
    HangView,
    Lost,
    NodePayload,
    Onset,
    Outcome,
    Seconds,
    StackGroup,
    Subject,
    Verdict,
    Victims,
    Window,
)
from rootwalk.graph.score import HIGH_SCORE, MEDIUM_SCORE
from rootwalk.graph.verdict import empty_verdict
from rootwalk.instrumentation import semconv

__all__ = ["build_live_graph", "live_findings_of", "live_verdict", "view_hang"]

# Ranks whose evidence a finding lists; of more the rest is in the store.
MAX_SHOWN: Final = 32
# Kind of the node that stands for the ways between the members of a communicator.
NETWORK: Final = "communicator"


def build_live_graph(judgement: Judgement) -> tuple[DependencyGraph, tuple[Evidence, ...]]:
    """Return the dependency graph of a job without progress, and what its edges rest on."""
    graph = DependencyGraph()
    evidence: list[Evidence] = []
    job = judgement.evidence.job
    job_node = node_id("job", job)
    graph.add_node(job_node, NodePayload("job", job, {}))
    for number, blame in enumerate(judgement.hang.blames):
        place = _place(blame.operation)
        label = name_live_operation(blame.operation, judgement.basis)
        attributes = {"reason": str(blame.reason)}
        graph.add_node(place, NodePayload("collective", label, dict(attributes)))
        graph.add_edge(job_node, place, EdgePayload(EdgeKind.SLOWED_BY, None, (), {}))
        for rank in blame.ranks:
            row = _row(judgement, blame, rank)
            evidence.append(row)
            node = node_id("rank", rank)
            graph.add_node(node, NodePayload("rank", f"rank {rank}", {"rank": rank}))
            payload = EdgePayload(EdgeKind.WAITS_FOR, None, (row.id,), dict(attributes))
            graph.add_edge(place, node, payload)
        if not blame.ranks:
            row = _all_called(judgement, blame, number)
            evidence.append(row)
            node = _network(blame.operation)
            graph.add_node(node, NodePayload(NETWORK, f"network of {label}", {}))
            payload = EdgePayload(EdgeKind.TRANSFERS_OVER, None, (row.id,), dict(attributes))
            graph.add_edge(place, node, payload)
    return graph, tuple(evidence)


def _place(operation: Operation) -> str:
    return node_id("collective", operation.communicator, operation.sequence)


def _network(operation: Operation) -> str:
    return node_id("communicator", operation.communicator)


def _row(judgement: Judgement, blame: Blame, rank: int) -> Evidence:
    """Return for how long a rank has made no progress, beside those that wait for it."""
    ranks = judgement.evidence.ranks
    own = ranks.get(rank)
    peers = [ranks[other].last.idle_s for other in blame.operation.calls if other in ranks]
    return Evidence(
        f"{blame.reason}-{rank}-{judgement.evidence.since_ns}",
        semconv.TRAINING_PROGRESS_IDLE_TIME,
        None if own is None else own.last.idle_s,
        "s",
        statistics.median(peers) if peers else None,
        *(None, None, None, None),
        _query(judgement, rank),
        {"role": "magnitude"},
    )


def _all_called(judgement: Judgement, blame: Blame, number: int) -> Evidence:
    """Return for how long all members have waited in an operation that all have called."""
    since_ns = blame.operation.since_unix_ns
    return Evidence(
        f"{blame.reason}-all-{number}-{judgement.evidence.since_ns}",
        semconv.COLLECTIVE_PENDING_TIME,
        round((judgement.evidence.until_ns - since_ns) / 1e9, 3),
        "s",
        *(None, None, None, None, None),
        _query(judgement, None),
        {"role": "magnitude"},
    )


def _query(judgement: Judgement, rank: int | None) -> str:
    evidence = judgement.evidence
    job = evidence.job.replace("'", "''")
    events = (
        f"'{semconv.EVENT_TRAINING_RANK_PROGRESS}', '{semconv.EVENT_TRAINING_COLLECTIVE_PROGRESS}',"
        f" '{semconv.EVENT_TRAINING_RANK_STACK}'"
    )
    of = "" if rank is None else f" AND rank = {rank}"
    return (
        f"SELECT unix_ns, rank, event_name, attributes FROM logs WHERE job = '{job}'{of}"  # noqa: S608
        f" AND event_name IN ({events}) AND unix_ns >= {evidence.since_ns} ORDER BY unix_ns"
    )


def live_findings_of(
    judgement: Judgement, graph: DependencyGraph, evidence: Sequence[Evidence]
) -> tuple[Finding, ...]:
    """Return a finding for every blame to which the graph still leads, the surest first."""
    made = [_finding(judgement, blame, graph, evidence) for blame in judgement.hang.blames]
    return tuple(finding for finding in made if finding is not None)


def live_verdict(
    judgement: Judgement,
    quality: tuple[DataQuality, ...],
    graph: DependencyGraph,
    evidence: Sequence[Evidence],
) -> Verdict:
    """Return the verdict about a job that is stuck at the end of its evidence.

    Args:
        judgement: Who or what holds it up.
        quality: What is wrong with the evidence.
        graph: As the store gives it back.
        evidence: As the store gives it back.
    """
    told, hang = judgement.evidence, judgement.hang
    world = told.world_size or (hang.world or None)
    verdict = empty_verdict(told.job, told.attempt, world, quality)
    findings = live_findings_of(judgement, graph, evidence) if judgement.is_hang else ()
    rule = live_rule_of(hang.blames[0].reason) if findings else None
    return replace(
        verdict,
        window=Window(told.since_ns, told.until_ns, None, None),
        outcome=Outcome.FINDING if findings else Outcome.INSUFFICIENT_EVIDENCE,
        kind="hang",
        syndrome=None if rule is None else rule.syndrome,
        findings=findings,
        victims=Victims(hang.victims, len(hang.victims), None) if findings else Victims(),
        hang=view_hang(judgement),
    )


def view_hang(judgement: Judgement) -> HangView:
    """Return the operation that shows a hang best, and what the ranks do."""
    told, hang, operation = judgement.evidence, judgement.hang, judgement.operation
    blame = hang.blames[0] if hang.blames else None
    has_number = operation is not None and operation.sequence > 0
    return HangView(
        communicator=operation.description or None if operation is not None else None,
        sequence=operation.sequence if operation is not None and has_number else None,
        operation=None if operation is None else operation.operation,
        joined=() if operation is None else operation.joined,
        absent=()
        if operation is None
        else tuple(sorted({*operation.absent, *operation.gone} - hang.aside)),
        cycle=tuple(name_live_operation(one, judgement.basis) for one in blame.cycle[:MAX_CYCLE])
        if blame is not None
        else (),
        stack_groups=_stack_groups(judgement),
        since_unix_ns=told.since_ns if operation is None else _since(judgement, operation),
        basis=str(judgement.basis),
        ranks=tuple(
            HangRank(one.rank, str(one.doing), one.where, one.text.rstrip(","))
            for _, one in sorted(judgement.occupations.items())
        ),
        idle_s=round(told.idle_s, 3),
        last_step=told.last_step,
    )


def _stack_groups(judgement: Judgement) -> tuple[StackGroup, ...]:
    """Return the ranks by where their training threads stand: the smallest groups first, of these who is to blame."""
    blamed = {rank for blame in judgement.hang.blames for rank in blame.ranks}
    ordered = sorted(
        judgement.evidence.stack_groups,
        key=lambda group: (len(group.ranks), blamed.isdisjoint(group.ranks), group.ranks),
    )
    return tuple(StackGroup(group.ranks, group.frames) for group in ordered[:MAX_STACK_GROUPS])


def _since(judgement: Judgement, operation: Operation) -> int:
    return operation.since_unix_ns if operation.calls else judgement.evidence.since_ns


def _finding(
    judgement: Judgement, blame: Blame, graph: DependencyGraph, evidence: Sequence[Evidence]
) -> Finding | None:
    told, operation = judgement.evidence, blame.operation
    rule = live_rule_of(blame.reason)
    place, by_id = _place(operation), {row.id: row for row in evidence}
    kind = EdgeKind.WAITS_FOR if blame.ranks else EdgeKind.TRANSFERS_OVER
    ends = [node_id("rank", rank) for rank in blame.ranks] or [_network(operation)]
    edges = [
        edge
        for edge in graph.leaving(place, kind)
        if edge.payload.attributes.get("reason") == blame.reason
        and edge.target in ends
        and all(key in by_id for key in edge.payload.evidence_ids)
    ]
    if {edge.target for edge in edges} != set(ends):
        return None
    node = ends[0] if len(ends) == 1 else place
    single = blame.ranks[0] if len(blame.ranks) == 1 else None
    score = round(blame.certainty, 3)
    band = Band.HIGH if score >= HIGH_SCORE else Band.MEDIUM if score >= MEDIUM_SCORE else Band.LOW
    # One job may hang twice for one reason: the operation is a part of what it is.
    key = f"{told.job}|{told.attempt}|{blame.reason}|{node}|{place}"
    own = None if single is None else told.ranks.get(single)
    idle_s, world = round(told.idle_s, 3), told.world_size or (judgement.hang.world or None)
    rows = [by_id[id_] for edge in edges[:MAX_SHOWN] for id_ in edge.payload.evidence_ids]
    return Finding(
        id=hashlib.sha256(key.encode()).hexdigest()[:8],
        state="open" if told.is_open else "closed",
        kind="hang",
        method="hang",
        severity="critical",
        reason=str(blame.reason),
        layer=rule.layer,
        owner=rule.owner,
        subject=Subject(
            node=node,
            rank=single,
            ranks=blame.ranks,
            host=None if own is None else own.host,
            device=None,
            stage=None,
            communicator=operation.description or None,
            aggressor=None,
        ),
        pattern="fixed" if single is not None else None,
        onset=Onset(told.last_step, told.since_ns),
        detected_unix_ns=None,
        named_unix_ns=None,
        seconds=Seconds(None, None, None),
        predicted_step_s=None,
        lost=Lost(None, idle_s, None if world is None else round(idle_s * world, 3), None),
        confidence=Confidence(str(band), score, round(blame.certainty, 3), 1.0),
        victims=FindingVictims(len(judgement.hang.victims), None),
        chain=_chain(judgement, blame, place, ends),
        evidence=tuple(_evidence_view(row) for row in rows),
        excluded=rule.excluded,
        action_code=rule.action_code,
        action=rule.action,
    )


def _chain(
    judgement: Judgement, blame: Blame, place: str, ends: Sequence[str]
) -> tuple[ChainLink, ...]:
    told = judgement.evidence
    label = name_live_operation(blame.operation, judgement.basis)
    first = ChainLink(
        node_id("job", told.job), str(EdgeKind.SLOWED_BY), None, f"{told.job} hangs in {label}"
    )
    if not blame.ranks:
        text = describe_blame(judgement, blame)
        return first, ChainLink(place, str(EdgeKind.TRANSFERS_OVER), None, text)
    return (
        first,
        *(
            ChainLink(
                place,
                str(EdgeKind.WAITS_FOR),
                None,
                f"{label} waits for rank {rank}: {describe_rank(judgement, rank, blame.reason)}",
            )
            for rank in blame.ranks[: len(ends)][:MAX_SHOWN]
        ),
    )


def _evidence_view(row: Evidence) -> EvidenceView:
    return EvidenceView(
        *(row.signal, row.value, row.unit, row.peers, row.history),
        *(row.z, row.trace_id, row.span_id, row.query),
    )
