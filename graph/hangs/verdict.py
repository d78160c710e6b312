"""The verdict about a hang: its dependency graph, and what that says once it has been through the store.

    job -slowed_by-> collective -waits_for-> rank

A reason stands for the ranks that the stored graph still leads to.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rootwalk.graph.dependencies import DependencyGraph, node_id
from rootwalk.graph.hangs.counted import count_evidence
from rootwalk.graph.hangs.differences import call_groups
from rootwalk.graph.hangs.flight_records import RankRecord
from rootwalk.graph.hangs.flight_store import pending_query
from rootwalk.graph.hangs.host_waits import HostWait
from rootwalk.graph.hangs.judge import Blame, Hang
from rootwalk.graph.hangs.operations import Operation
from rootwalk.graph.hangs.rules import BY_STACKS, HANG_RULES, HangRule, rule_of
from rootwalk.graph.model import (
    Attributes,
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
from rootwalk.graph.profiles.reading import TimeKind
from rootwalk.graph.reasons import FRAME_SIGNAL
from rootwalk.graph.score import HIGH_SCORE, MEDIUM_SCORE
from rootwalk.graph.verdict import empty_verdict

__all__ = ["build_hang_graph", "hang_verdict"]

# What the evidence of a hang counts.
UNFINISHED: Final = "collective.unfinished_calls"
# Stacks that are shown: the largest groups say what is usual, the smallest who is not.
MAX_STACK_GROUPS: Final = 8
# Operations of a cyclic wait that are named.
MAX_CYCLE: Final = 32


def build_hang_graph(
    job: str, hang: Hang, records: Sequence[RankRecord], *, is_counted: bool = False
) -> tuple[DependencyGraph, tuple[Evidence, ...]]:
    """Return the dependency graph of a hang, and what its edges rest on.

    Args:
        job: Whose records these are.
        hang: What they say.
        records: One a rank.
        is_counted: Whether counts of calls have told it, and no flight recorder.
    """
    graph = DependencyGraph()
    evidence: list[Evidence] = []
    unfinished = {record.rank: len(record.pending) for record in records}
    usual = [unfinished[rank] for rank in hang.victims]
    job_node = node_id("job", job)
    graph.add_node(job_node, NodePayload("job", job, {}))
    for blame in hang.blames:
        place = _place(blame.operation)
        label = name_operation(blame.operation)
        counted = count_evidence(job, records, blame) if is_counted else {}
        graph.add_node(place, NodePayload("collective", label, {"reason": str(blame.reason)}))
        graph.add_edge(job_node, place, EdgePayload(EdgeKind.SLOWED_BY, None, (), {}))
        for rank in blame.ranks:
            key = f"{blame.reason}-{rank}"
            evidence.append(
                counted[rank]
                if is_counted
                else Evidence(
                    key,
                    UNFINISHED,
                    float(unfinished[rank]) if rank in unfinished else None,
                    "{call}",
                    statistics.median(usual) if usual else None,
                    *(None, None, None, None),
                    pending_query(job, rank),
                    {"role": "magnitude"},
                )
            )
            keys = [key]
            if blame.reason in BY_STACKS and rank in hang.host_waits:
                shown = _wait_evidence(key, hang.host_waits[rank])
                evidence += shown
                keys += [row.id for row in shown]
            node = node_id("rank", rank)
            graph.add_node(node, NodePayload("rank", f"rank {rank}", {"rank": rank}))
            attributes = {"reason": str(blame.reason)}
            graph.add_edge(
                place, node, EdgePayload(EdgeKind.WAITS_FOR, None, tuple(keys), dict(attributes))
            )
    return graph, tuple(evidence)


def _wait_evidence(key: str, wait: HostWait) -> list[Evidence]:
    """Return the rows about a rank's own wait, and about the device that it waits for where that is lost."""
    unknown = (None, None, None, None, None)
    role: Attributes = {"role": "context"}
    kind = TimeKind.OFF_CPU if wait.is_asleep else TimeKind.ON_CPU
    name = f"{FRAME_SIGNAL}{kind}: {wait.function}"
    rows = [Evidence(f"{key}-wait", name, wait.waited_ns / 1e9, "s", *unknown, wait.query, role)]
    if wait.lost is not None:
        said = (f"{key}-lost", wait.lost.signal, 1.0, "1")
        rows.append(Evidence(*said, *unknown, wait.lost.query, role))
    return rows


def hang_verdict(
    job: str,
    attempt: int,
    hang: Hang,
    records: Sequence[RankRecord],
    quality: tuple[DataQuality, ...],
    graph: DependencyGraph,
    evidence: Sequence[Evidence],
) -> Verdict:
    """Return the verdict about what flight recorders recorded, or what counts of calls say.

    Args:
        job: Whose dumps these are.
        attempt: Of the job.
        hang: What they say.
        records: One a rank.
        quality: What is wrong with the dumps.
        graph: As the store gives it back.
        evidence: As the store gives it back.
    """
    verdict = empty_verdict(job, attempt, hang.world, quality)
    used = [record for record in records if record.rank not in hang.aside]
    if not hang.operations:
        is_whole = len(used) == hang.world > 0
        return replace(verdict, outcome=Outcome.HEALTHY) if is_whole else verdict
    coverage = len(used) / hang.world
    made = [_finding(job, attempt, hang, b, coverage, graph, evidence) for b in hang.blames]
    findings = tuple(sorted((f for f in made if f is not None), key=lambda f: f.id))
    shown = hang.blames[0] if findings else None
    operation = shown.operation if shown else min(hang.operations, key=lambda o: o.since_unix_ns)
    since = min(op.since_unix_ns for op in hang.operations)
    latest = max(call.created_unix_ns for op in hang.operations for call in op.calls.values())
    return replace(
        verdict,
        window=Window(since, latest, None, None),
        outcome=Outcome.FINDING if findings else Outcome.INSUFFICIENT_EVIDENCE,
        kind="hang",
        syndrome=HANG_RULES[shown.reason].syndrome if shown else None,
        findings=findings,
        victims=Victims(hang.victims, len(hang.victims), None) if findings else Victims(),
        hang=HangView(
            communicator=operation.description,
            sequence=operation.sequence,
            operation=operation.operation,
            joined=operation.joined,
            absent=tuple(sorted({*operation.absent, *operation.gone} - hang.aside)),
            cycle=tuple(map(name_operation, shown.cycle[:MAX_CYCLE])) if shown else (),
            stack_groups=_stack_groups(used),
            since_unix_ns=operation.since_unix_ns,
            calls=call_groups(operation, used),
        ),
    )


def name_operation(operation: Operation) -> str:
    """Return an operation as people name it: `all_reduce #12 of DATA_PARALLEL_GROUP`."""
    group = operation.description
    if operation.is_message:
        sender, receiver = operation.members
        return f"send from {sender} to {receiver} in {group}"
    return f"{operation.operation} #{operation.sequence} of {group}"


def _place(operation: Operation) -> str:
    ends = [f"{rank}-" for rank in operation.members] if operation.is_message else []
    return node_id("collective", operation.communicator, f"{''.join(ends)}{operation.sequence}")


def _finding(
    job: str,
    attempt: int,
    hang: Hang,
    blame: Blame,
    coverage: float,
    graph: DependencyGraph,
    evidence: Sequence[Evidence],
) -> Finding | None:
    waits = [hang.host_waits[rank] for rank in blame.ranks if rank in hang.host_waits]
    rule = rule_of(blame.reason, waits)
    place = _place(blame.operation)
    by_id = {row.id: row for row in evidence}
    edges = [
        edge
        for edge in graph.leaving(place, EdgeKind.WAITS_FOR)
        if edge.payload.attributes.get("reason") == blame.reason
        and all(key in by_id for key in edge.payload.evidence_ids)
    ]
    # One reason may have two blames at one operation: by dumps and by stacks.
    wanted = {node_id("rank", rank): rank for rank in blame.ranks}
    edges = [edge for edge in edges if edge.target in wanted and graph.node(edge.target)]
    ranks = tuple(sorted(wanted[edge.target] for edge in edges))
    if ranks != blame.ranks:
        return None
    label = name_operation(blame.operation)
    node = edges[0].target if len(ranks) == 1 else place
    score = round(blame.certainty * coverage, 3)
    key = f"{job}|{attempt}|{blame.reason}|{node}"
    band = Band.HIGH if score >= HIGH_SCORE else Band.MEDIUM if score >= MEDIUM_SCORE else Band.LOW
    return Finding(
        id=hashlib.sha256(key.encode()).hexdigest()[:8],
        state="open",
        kind="hang",
        method="hang",
        severity="critical",
        reason=str(blame.reason),
        layer=rule.layer,
        owner=rule.owner,
        subject=Subject(
            node=node,
            rank=ranks[0] if len(ranks) == 1 else None,
            ranks=ranks,
            host=None,
            device=waits[0].lost.device if len(ranks) == 1 and waits and waits[0].lost else None,
            stage=None,
            communicator=blame.operation.description,
            aggressor=None,
        ),
        pattern="fixed" if len(ranks) == 1 else None,
        onset=Onset(None, blame.operation.since_unix_ns),
        detected_unix_ns=None,
        named_unix_ns=None,
        seconds=Seconds(None, None, None),
        predicted_step_s=None,
        lost=Lost(None, None, None, None),
        confidence=Confidence(str(band), score, blame.certainty, round(coverage, 3)),
        victims=FindingVictims(len(hang.victims), None),
        chain=_chain(job, place, label, ranks, rule),
        evidence=tuple(_view(by_id[key]) for edge in edges for key in edge.payload.evidence_ids),
        excluded=rule.excluded,
        action_code=rule.action_code,
        action=rule.action,
    )


def _chain(
    job: str, place: str, label: str, ranks: tuple[int, ...], rule: HangRule
) -> tuple[ChainLink, ...]:
    first = ChainLink(node_id("job", job), str(EdgeKind.SLOWED_BY), None, f"{job} hangs in {label}")
    return (
        first,
        *(
            ChainLink(
                place,
                str(EdgeKind.WAITS_FOR),
                None,
                f"{label} waits for rank {rank}: {rule.title.format(operation='it')}",
            )
            for rank in ranks
        ),
    )


def _view(row: Evidence) -> EvidenceView:
    return EvidenceView(
        *(row.signal, row.value, row.unit, row.peers, row.history),
        *(row.z, row.trace_id, row.span_id, row.query),
    )


def _stack_groups(records: Sequence[RankRecord]) -> tuple[StackGroup, ...]:
    """Return the ranks by where their hosts issued their last call, the smallest groups first."""
    stacks = {record.rank: record.last_frames for record in records if record.last_frames}
    counts = Counter(stacks.values())
    ordered = sorted(counts, key=lambda frames: (counts[frames], frames))[:MAX_STACK_GROUPS]
    return tuple(
        StackGroup(tuple(sorted(rank for rank in stacks if stacks[rank] == frames)), frames)
        for frames in ordered
    )
