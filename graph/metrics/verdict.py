"""The verdict from metrics alone, by what its dependency graph says once it has been stored.

There are no steps and no seconds, so that nothing adds up and nothing is predicted: those fields are null. What stands
out at the time and place of a fall need not be its cause: confidence is low, always.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rootwalk.graph.dependencies import DependencyGraph, node_id
from rootwalk.graph.metrics.graph import MetricStory, evidence_ids
from rootwalk.graph.metrics.judge import COMPONENTS, Cause, MetricJudgement
from rootwalk.graph.metrics.rules import RULES, Role
from rootwalk.graph.metrics.words import subject_label
from rootwalk.graph.model import (
    Band,
    ChainLink,
    Confidence,
    EdgeKind,
    Evidence,
    EvidenceView,
    Finding,
    FindingVictims,
    Lost,
    MissingSensor,
    Onset,
    Outcome,
    Seconds,
    Subject,
    Verdict,
    Window,
)
from rootwalk.graph.reasons import WOULD_DECIDE
from rootwalk.graph.verdict import empty_verdict

__all__ = ["metric_verdict"]

# Below what makes medium confidence (`score.MEDIUM_SCORE`), whatever is measured.
MAX_SCORE: Final = 0.45
# Of each component, the sensor that would have told it.
_SENSORS: Final = {
    "gpu": "nvml",
    "cpu": "cpu",
    "memory": "vmstat",
    "disk": "disks",
    "nic": "nic_counters",
}
# Which no metric stands in for: steps and threads.
_STEPS: Final = "instrumentation"
_THREADS: Final = "sched"


def metric_verdict(
    story: MetricStory, graph: DependencyGraph, evidence: Sequence[Evidence]
) -> Verdict:
    """Return the verdict; a finding stands only with its edges and evidence.

    Args:
        story: What was read, and what it says.
        graph: As the store gives it back.
        evidence: As the store gives it back.
    """
    case, judgement = story.case, story.judgement
    key = case.key
    verdict = replace(
        empty_verdict(key.job, key.attempt, key.world_size, story.quality),
        window=Window(*story.bounds_unix_ns, None, None),
        missing_sensors=_missing(story),
    )
    if judgement is None:
        return verdict
    by_id = {row.id: row for row in evidence}
    findings = tuple(
        _finding(story, judgement, cause, by_id)
        for cause in judgement.causes
        if _stands(story, judgement, cause, graph, by_id)
    )
    is_slow = bool(judgement.symptoms)
    is_quiet = not is_slow and not judgement.standing and not judgement.alike
    is_healthy = is_quiet and judgement.is_measured and judgement.is_enough and case.is_sound
    syndrome = None
    if findings:
        is_network = findings[0].layer == "network"
        syndrome = "communication_slow" if is_network else "non_communication_slow"
    outcome = Outcome.HEALTHY if is_healthy else Outcome.INSUFFICIENT_EVIDENCE
    return replace(
        verdict,
        outcome=Outcome.FINDING if findings else outcome,
        kind="slow" if is_slow else None,
        syndrome=syndrome,
        findings=findings,
    )


def _told(story: MetricStory) -> set[str]:
    """Return the components of which something was measured that could slow a job."""
    names = story.case.quantities
    return {RULES[name].component for name in names if RULES[name].role is Role.CONDITION}


def _missing(story: MetricStory) -> tuple[MissingSensor, ...]:
    """Return what could not be read, for the agents' own reasons where there are agents, and steps, always."""
    case, found = story.case, {(_STEPS, "NO_STEPS"): set(story.case.hosts)}
    for row in case.sensors:
        if row.status != "available" and row.sensor in WOULD_DECIDE:
            reason = row.reason or row.status.upper()
            found.setdefault((row.sensor, reason), set()).add(row.host_name)
    if not case.sensors:
        told = _told(story)
        names = [_THREADS, *(_SENSORS[kind] for kind in COMPONENTS if kind not in told)]
        found |= {(name, "NO_AGENT"): set(case.hosts) for name in names}
    return tuple(
        MissingSensor(name, reason, tuple(sorted(hosts)), WOULD_DECIDE[name])
        for (name, reason), hosts in sorted(found.items())
    )


def _stands(
    story: MetricStory,
    judgement: MetricJudgement,
    cause: Cause,
    graph: DependencyGraph,
    by_id: dict[str, Evidence],
) -> bool:
    job, host = node_id("job", story.case.key.job), node_id("host", cause.host)
    cited: set[str] = set()
    for source, target in ((job, host), (host, cause.node)):
        edges = [e for e in graph.leaving(source, EdgeKind.SLOWED_BY) if e.target == target]
        if not edges:
            return False
        cited |= set(edges[0].payload.evidence_ids)
    return set(evidence_ids(judgement, cause)) <= cited & by_id.keys()


def _finding(
    story: MetricStory,
    judgement: MetricJudgement,
    cause: Cause,
    by_id: dict[str, Evidence],
) -> Finding:
    key, rule = story.case.key, RULES[cause.readings[0].rule]
    job, host = node_id("job", key.job), node_id("host", cause.host)
    label = subject_label(rule.component, cause.host, cause.device)
    has_past = judgement.episode is not None
    onset = story.bounds_unix_ns[0] if has_past else None
    is_open = judgement.episode is None or judgement.episode.stop is None
    coverage = len(_told(story)) / len(COMPONENTS)
    identity = f"{key.job}|{key.attempt}|{rule.reason}|{cause.node}|{onset}"
    how = "fell" if has_past else "differs from that of others"
    symptom_id, *own = evidence_ids(judgement, cause)
    return Finding(
        id=hashlib.sha256(identity.encode()).hexdigest()[:8],
        state="open" if is_open else "closed",
        kind="slow",
        method="metric_only",
        severity="warning",
        reason=str(rule.reason),
        layer=rule.layer,
        owner=rule.owner,
        subject=Subject(cause.node, None, (), cause.host, cause.device, None, None, None),
        pattern=None,
        onset=Onset(None, onset),
        detected_unix_ns=None,
        named_unix_ns=None,
        seconds=Seconds(None, None, None),
        predicted_step_s=None,
        lost=Lost(None, None, None, None),
        confidence=Confidence(
            str(Band.LOW),
            round(MAX_SCORE * cause.share * coverage, 3),
            round(cause.share, 3),
            round(coverage, 3),
        ),
        victims=FindingVictims(0, None),
        chain=(
            ChainLink(job, str(EdgeKind.SLOWED_BY), None, f"the work of {key.job} {how}"),
            ChainLink(host, str(EdgeKind.SLOWED_BY), None, f"{label}: {rule.words}"),
        ),
        evidence=tuple(_view(by_id[row]) for row in (*own, symptom_id)),
        excluded=(),
        action_code=rule.action_code,
        action=rule.action,
    )


def _view(row: Evidence) -> EvidenceView:
    return EvidenceView(
        *(row.signal, row.value, row.unit, row.peers, row.history),
        *(row.z, row.trace_id, row.span_id, row.query),
    )
