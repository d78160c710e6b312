"""The verdict about a job that ended: its dependency graph, and what that says once it has been through the store.

    job -ended_by-> rank -ended_by-> process

No step that ended says what it cost: its seconds are unknown. It stands beside what made the job slow before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rootwalk.graph.align import ClockOffsets
from rootwalk.graph.columns import JobData
from rootwalk.graph.dependencies import DependencyGraph, node_id
from rootwalk.graph.ends.events import event_query, read_events
from rootwalk.graph.ends.judge import JobEnd, find_end
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.model import (
    Attributes,
    Band,
    ChainLink,
    Confidence,
    EdgeKind,
    EdgePayload,
    Evidence,
    EvidenceView,
    Excluded,
    Finding,
    FindingVictims,
    Lost,
    NodePayload,
    Onset,
    Outcome,
    Seconds,
    Subject,
    Verdict,
    Victims,
)
from rootwalk.graph.reasons import RULES, Reason, Signal
from rootwalk.graph.score import HIGH_SCORE, MEDIUM_SCORE
from rootwalk.instrumentation import semconv

__all__ = ["EndCase", "add_end", "conclude_end", "read_end"]

_SENSOR: Final = "lifecycle"
_KILL, _END = "end/kill", "end/rank"
# Priors: the kernel's own word for the rank's process; for a child of it, what follows from the order of events.
OWN_CERTAINTY: Final = 0.95
CHILD_CERTAINTY: Final = 0.85


@dataclass(frozen=True, slots=True)
class EndCase:
    """The end of a job by a kill for memory.

    `others` are its other ranks; `coverage` is the part of the job's ranks whose ends a sensor would have told.
    """

    key: JobKey
    found: JobEnd
    others: tuple[int, ...]
    coverage: float

    @property
    def process(self) -> str:
        """The node of the process that was killed."""
        pid, rank = self.found.kill.pid, self.found.kill.rank
        part = f"rank{rank}-killed" if pid is None else str(pid)
        return node_id("process", self.found.end.host_name, part)


def read_end(
    connection: Any,
    key: JobKey,
    data: JobData,
    offsets: ClockOffsets,
) -> EndCase | None:
    """Return the end of a job whose rank ended because a process of it was killed for memory; None for any other.

    Args:
        connection: An open store.
        key: The job and the attempt.
        data: Its ranks and sensors.
        offsets: Of its hosts' clocks.
    """
    events = read_events(connection, key, offsets.offset_s_by_host)
    found = None if events is None else find_end(events, is_aligned=not offsets.quality)
    if events is None or found is None:
        return None
    told = {
        row.host_name for row in data.sensors if (row.sensor, row.status) == (_SENSOR, "available")
    }
    ranks = {row.rank for row in data.ranks}
    # Whose end was told had such a sensor, whether or not that has told of itself.
    seen = {row.rank for row in data.ranks if (row.host_name or row.host_id) in told}
    seen |= {end.rank for end in events.ends}
    coverage = len(seen) / max(data.world_size or 0, len(ranks | seen))
    return EndCase(key, found, tuple(sorted(ranks - {found.end.rank})), coverage)


def add_end(
    graph: DependencyGraph, case: EndCase, evidence: tuple[Evidence, ...]
) -> tuple[Evidence, ...]:
    """Add the end to a dependency graph, and return the evidence with that of its edges; safe twice."""
    found, key = case.found, case.key
    job_node, rank_node = node_id("job", key.job), node_id("rank", found.end.rank)
    if graph.node(job_node) is None:
        graph.add_node(job_node, NodePayload("job", key.job, {"attempt": key.attempt}))
    rank = found.end.rank
    graph.add_node(rank_node, NodePayload("rank", f"rank {rank}", {"rank": rank}))
    label = _process(found)
    graph.add_node(case.process, NodePayload("process", label, {"rank": rank}))
    attributes: Attributes = {"reason": str(Reason.OOM_KILL)}
    for source, target, row in ((job_node, rank_node, _END), (rank_node, case.process, _KILL)):
        payload = EdgePayload(EdgeKind.ENDED_BY, None, (row,), dict(attributes))
        graph.add_edge(source, target, payload)
    unknown = (None, None, None, None, None)
    end, kill = semconv.EVENT_TRAINING_PROCESS_END, semconv.EVENT_TRAINING_PROCESS_OOM_KILL
    delay_s = found.delay_ns / 1e9
    return (
        *(row for row in evidence if row.id not in (_KILL, _END)),
        Evidence(
            _KILL,
            str(Signal.KILLED),
            1.0,
            "1",
            *unknown,
            event_query(key, rank, kill),
            {"role": "magnitude"},
        ),
        Evidence(
            _END,
            end,
            delay_s,
            "s",
            *unknown,
            event_query(key, rank, kill, end),
            {"role": "context"},
        ),
    )


def conclude_end(
    verdict: Verdict, case: EndCase, graph: DependencyGraph, evidence: Sequence[Evidence]
) -> Verdict:
    """Return a verdict with the end of its job; as it was where the stored graph does not bear that.

    Args:
        verdict: What the job's steps say.
        case: What was found.
        graph: The dependency graph as the store gives it back.
        evidence: Its evidence rows, likewise.
    """
    rows = {row.id: row for row in evidence}
    rank_node = node_id("rank", case.found.end.rank)
    edges = (
        *(
            e
            for e in graph.leaving(node_id("job", case.key.job), EdgeKind.ENDED_BY)
            if e.target == rank_node
        ),
        *(e for e in graph.leaving(rank_node, EdgeKind.ENDED_BY) if e.target == case.process),
    )
    if len(edges) != len((_END, _KILL)) or not {_END, _KILL} <= rows.keys():
        return verdict
    finding = _finding(case, [rows[_KILL], rows[_END]])
    is_alone = not verdict.findings
    return replace(
        verdict,
        outcome=Outcome.FINDING,
        kind=None if is_alone else verdict.kind,
        findings=(*verdict.findings, finding),
        victims=Victims(case.others, len(case.others), None) if is_alone else verdict.victims,
    )


def _finding(case: EndCase, rows: Sequence[Evidence]) -> Finding:
    found, rule = case.found, RULES[Reason.OOM_KILL]
    certainty = OWN_CERTAINTY if found.is_own else CHILD_CERTAINTY
    score = round(certainty * case.coverage, 3)
    band = Band.HIGH if score >= HIGH_SCORE else Band.MEDIUM if score >= MEDIUM_SCORE else Band.LOW
    key = f"{case.key.job}|{case.key.attempt}|{rule.reason}|{case.process}|end"
    step = None if found.last_step is None else found.last_step.number
    because = "no rank had ended before, and nobody had sent this one a signal"
    return Finding(
        id=hashlib.sha256(key.encode()).hexdigest()[:8],
        state="closed",
        kind=None,
        method="walk",
        severity="critical",
        reason=str(rule.reason),
        layer=rule.layer,
        owner=rule.owner,
        subject=Subject(
            node=case.process,
            rank=found.end.rank,
            ranks=(found.end.rank,),
            host=found.end.host_name,
            device=None,
            stage=None,
            communicator=None,
            aggressor=None,
        ),
        pattern="fixed",
        onset=Onset(step, found.kill.time_ns),
        detected_unix_ns=None,
        named_unix_ns=None,
        seconds=Seconds(None, None, None),
        predicted_step_s=None,
        lost=Lost(None, None, None, None),
        confidence=Confidence(str(band), score, certainty, round(case.coverage, 3)),
        victims=FindingVictims(len(case.others), None),
        chain=_chain(case),
        evidence=tuple(
            EvidenceView(
                *(row.signal, row.value, row.unit, row.peers, row.history),
                *(row.z, row.trace_id, row.span_id, row.query),
            )
            for row in rows
        ),
        excluded=(Excluded(str(Reason.RANK_GONE), because),),
        action_code=rule.action_code,
        action=rule.action,
    )


def _chain(case: EndCase) -> tuple[ChainLink, ...]:
    found, edge = case.found, str(EdgeKind.ENDED_BY)
    how = (
        f"with code {found.end.exit_code}" if found.end.signal is None else f"by {found.end.signal}"
    )
    rank = f"rank {found.end.rank}"
    return (
        ChainLink(
            node_id("job", case.key.job),
            edge,
            None,
            f"{case.key.job} ended by {rank}, the first to end, {how}",
        ),
        ChainLink(
            node_id("rank", found.end.rank),
            edge,
            None,
            f"{rank} ended {found.delay_ns / 1e9:.3f} s after the kernel had killed {_process(found)} for memory",
        ),
    )


def _process(found: JobEnd) -> str:
    name = "a process" if found.kill.pid is None else f"process {found.kill.pid}"
    return f"{name} (its own)" if found.is_own else f"{name} (a child of it)"
