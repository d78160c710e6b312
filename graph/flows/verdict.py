"""The verdict from communication records alone, by what its dependency graph says once it has been stored.

Iterations have no numbers of the job, so that the window has times and no steps. Confidence is medium at most.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rootwalk.graph.dependencies import DependencyGraph, node_id
from rootwalk.graph.findings import CRITICAL_RATIO
from rootwalk.graph.flows.graph import FlowStory, host_of, name_path, path_nodes, rounded
from rootwalk.graph.flows.judge import FlowJudgement, LateRank, SlowTransfer
from rootwalk.graph.flows.matrix import SlowPath
from rootwalk.graph.flows.rules import DECIDING_SENSORS, FLOW_RULES
from rootwalk.graph.model import (
    Band,
    ChainLink,
    Confidence,
    EdgeKind,
    Evidence,
    EvidenceView,
    Excluded,
    Finding,
    FindingVictims,
    Lost,
    MissingSensor,
    Onset,
    Outcome,
    QualityCode,
    Seconds,
    Subject,
    Verdict,
    Victims,
    Window,
)
from rootwalk.graph.reasons import WOULD_DECIDE, Reason
from rootwalk.graph.score import MEDIUM_SCORE
from rootwalk.graph.verdict import empty_verdict

__all__ = ["flow_verdict"]

# Against the job's own history, and between ranks alone: the first is medium, the second low.
MAX_SCORE: Final = 0.7
MAX_SCORE_WITHOUT_HISTORY: Final = 0.45


def flow_verdict(story: FlowStory, graph: DependencyGraph, evidence: Sequence[Evidence]) -> Verdict:
    """Return the verdict; a finding stands only with its edges and evidence.

    Args:
        story: What was read, and what it says.
        graph: As the store gives it back.
        evidence: As the store gives it back.
    """
    key, judgement = story.records.key, story.judgement
    verdict = empty_verdict(key.job, key.attempt, key.world_size, story.quality)
    hosts = tuple(sorted({row.host_name or row.host_id for row in story.records.ranks}))
    missing = tuple(
        MissingSensor(name, "NO_AGENT", hosts, WOULD_DECIDE[name]) for name in DECIDING_SENSORS
    )
    verdict = replace(verdict, missing_sensors=missing)
    if story.bounds_unix_ns is not None:
        verdict = replace(verdict, window=Window(*story.bounds_unix_ns, None, None))
    if judgement is None:
        return verdict
    findings = _findings(story, judgement, graph, evidence) if story.is_sound else ()
    shares_s = sum(finding.seconds.share or 0.0 for finding in findings)
    healthy_s, healthy_from = judgement.healthy_s, "history"
    if healthy_s is None:
        healthy_s, healthy_from = judgement.iteration_s - shares_s, "ideal"
    is_quiet = judgement.is_quiet
    is_whole = not any(item.code == QualityCode.RANK_MISSING for item in story.quality)
    is_healthy = is_quiet and judgement.is_enough and story.is_sound and not judgement.has_history
    is_healthy &= is_whole
    outcome = Outcome.HEALTHY if is_healthy else Outcome.INSUFFICIENT_EVIDENCE
    is_slow = judgement.has_history or not is_quiet
    first = findings[0] if findings else None
    late = [item for item in judgement.late if first and first.subject.rank == item.rank]
    return replace(
        verdict,
        outcome=Outcome.FINDING if findings else outcome,
        kind="slow" if is_slow else None,
        syndrome=FLOW_RULES[Reason(first.reason)].syndrome if first else None,
        step_s=rounded(judgement.iteration_s),
        healthy_step_s=rounded(healthy_s) if findings or judgement.healthy_s else None,
        healthy_from=healthy_from if findings or judgement.healthy_s else None,
        predicted_step_s=first.predicted_step_s if first else None,
        findings=findings,
        victims=Victims(late[0].victims, len(late[0].victims), rounded(late[0].share_s))
        if late
        else Victims(),
        unexplained_s=rounded(judgement.iteration_s - healthy_s - shares_s) if is_slow else None,
    )


def _findings(
    story: FlowStory,
    judgement: FlowJudgement,
    graph: DependencyGraph,
    evidence: Sequence[Evidence],
) -> tuple[Finding, ...]:
    by_id = {row.id: row for row in evidence}
    made = []
    for late in judgement.late:
        place = node_id("communicator", story.records.rows.communicators[late.communicator])
        end = (place, EdgeKind.WAITS_FOR, node_id("rank", late.rank))
        if _stands(graph, by_id, end):
            made.append(_late_finding(story, judgement, late, by_id, end))
    for slow in judgement.transfers:
        name = story.records.rows.communicators[slow.communicator]
        end = (node_id("collective", name), EdgeKind.TRANSFERS_OVER, node_id("communicator", name))
        if _stands(graph, by_id, end):
            made.append(_slow_finding(story, judgement, slow, by_id, end))
    for path in judgement.paths:
        source, target = path_nodes(path)
        end = (source, EdgeKind.TRANSFERS_OVER, target)
        if _stands(graph, by_id, end):
            made.append(_path_finding(story, judgement, path, by_id, end))
    return tuple(sorted(made, key=lambda item: (-(item.seconds.share or 0.0), item.id)))


def _stands(
    graph: DependencyGraph, by_id: dict[str, Evidence], end: tuple[str, EdgeKind, str]
) -> bool:
    source, kind, target = end
    edges = [edge for edge in graph.leaving(source, kind) if edge.target == target]
    return bool(edges) and all(key in by_id for key in edges[0].payload.evidence_ids)


def _late_finding(
    story: FlowStory,
    judgement: FlowJudgement,
    late: LateRank,
    by_id: dict[str, Evidence],
    end: tuple[str, EdgeKind, str],
) -> Finding:
    label = story.records.labels[late.communicator]
    excluded: tuple[Excluded, ...] = ()
    if not judgement.transfers:
        text = "once it has come, its collectives take no longer than usual"
        excluded = (Excluded("UNKNOWN_NET", text),)
    if late.rank in story.device_excess_s and story.reason_of(late) is Reason.UNKNOWN_HOST:
        text = "its device computes no longer than the others'"
        excluded = (*excluded, Excluded("UNKNOWN_GPU", text))
    subject = Subject(
        node=end[2],
        rank=late.rank,
        ranks=(late.rank,),
        host=host_of(story, late.rank),
        device=None,
        stage=None,
        communicator=None,
        aggressor=None,
    )
    text = f"{label} waited for rank {late.rank}, which came last"
    return _finding(
        story,
        judgement,
        story.reason_of(late),
        subject,
        (late.share_s, late.remove_s, late.persistence),
        (end, text, by_id[f"{story.reason_of(late)}-{late.rank}"]),
        excluded=excluded,
        victims=FindingVictims(len(late.victims), rounded(late.share_s)),
    )


def _slow_finding(
    story: FlowStory,
    judgement: FlowJudgement,
    slow: SlowTransfer,
    by_id: dict[str, Evidence],
    end: tuple[str, EdgeKind, str],
) -> Finding:
    label = story.records.labels[slow.communicator]
    excluded = () if judgement.late else (Excluded("UNKNOWN_HOST", "no rank comes late"),)
    subject = Subject(end[2], None, (), None, None, None, label, None)
    count = f", as {slow.slow} of {slow.alike} groups of this volume" if slow.alike > 1 else ""
    return _finding(
        story,
        judgement,
        Reason.UNKNOWN_NET,
        subject,
        (slow.share_s, slow.share_s, slow.persistence),
        (
            end,
            f"transfers of {label} took longer once all had come{count}",
            by_id[f"{Reason.UNKNOWN_NET}-{slow.communicator}"],
        ),
        excluded=excluded,
        victims=FindingVictims(0, None),
    )


def _path_finding(
    story: FlowStory,
    judgement: FlowJudgement,
    path: SlowPath,
    by_id: dict[str, Evidence],
    end: tuple[str, EdgeKind, str],
) -> Finding:
    host = None if path.rank is None else host_of(story, path.rank)
    ranks = path.ranks if path.rank is None else (path.rank,)
    label = None if path.rank is not None else name_path(path)
    text = f"messages over {name_path(path)} took longer than between others, {path.slow} of {path.alike} pairs"
    return _finding(
        story,
        # Only pairs are compared, whatever the history.
        replace(judgement, has_history=False),
        Reason.UNKNOWN_NET,
        Subject(end[2], path.rank, ranks, host, None, None, label, None),
        (path.share_s, path.share_s, 1.0),
        (end, text, by_id[f"{Reason.UNKNOWN_NET}-{end[2]}"]),
        excluded=(),
        victims=FindingVictims(0, None),
    )


def _finding(
    story: FlowStory,
    judgement: FlowJudgement,
    reason: Reason,
    subject: Subject,
    numbers: tuple[float, float, float],
    told: tuple[tuple[str, EdgeKind, str], str, Evidence],
    *,
    excluded: tuple[Excluded, ...],
    victims: FindingVictims,
) -> Finding:
    """Return the finding of one reason; `numbers` are share, remove and persistence."""
    key, rule = story.records.key, FLOW_RULES[reason]
    share_s, remove_s, persistence = numbers
    (source, kind, _), text, row = told
    job = node_id("job", key.job)
    count = judgement.stop - judgement.first
    world = key.world_size or len(story.records.ranks)
    coverage = min(len(story.records.ranks) / world, 1.0)
    cap = (
        MAX_SCORE if judgement.has_history and not story.has_messages else MAX_SCORE_WITHOUT_HISTORY
    )
    score = round(cap * persistence * coverage, 3)
    healthy_s = judgement.healthy_s if judgement.healthy_s is not None else judgement.iteration_s
    onset = story.bounds_unix_ns[0] if judgement.has_history and story.bounds_unix_ns else None
    identity = f"{key.job}|{key.attempt}|{reason}|{subject.node}|{onset}"
    return Finding(
        id=hashlib.sha256(identity.encode()).hexdigest()[:8],
        state="open" if judgement.is_open else "closed",
        kind="slow",
        method="flow_only",
        severity="critical" if share_s >= CRITICAL_RATIO * healthy_s else "warning",
        reason=str(reason),
        layer=rule.layer,
        owner=rule.owner,
        subject=subject,
        pattern="fixed" if subject.rank is not None else None,
        onset=Onset(None, onset),
        detected_unix_ns=None,
        named_unix_ns=None,
        seconds=Seconds(rounded(share_s), rounded(remove_s), None),
        predicted_step_s=rounded(judgement.iteration_s - remove_s),
        lost=Lost(count, rounded(share_s * count), rounded(share_s * count * world), None),
        confidence=Confidence(
            str(Band.MEDIUM if score >= MEDIUM_SCORE else Band.LOW),
            score,
            round(persistence, 3),
            round(coverage, 3),
        ),
        victims=victims,
        chain=(
            ChainLink(job, str(EdgeKind.SLOWED_BY), rounded(share_s), f"{key.job} waited there"),
            ChainLink(source, str(kind), rounded(share_s), text),
        ),
        evidence=(
            EvidenceView(
                *(row.signal, row.value, row.unit, row.peers, row.history),
                *(row.z, row.trace_id, row.span_id, row.query),
            ),
        ),
        excluded=excluded,
        action_code=rule.action_code,
        action=rule.action,
    )
