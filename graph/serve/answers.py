"""What the API answers, as objects for JSON: times Unix ns, durations seconds, what nobody knows null."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.live.findings import LiveFinding
from rootwalk.graph.model import Finding, Verdict
from rootwalk.graph.passages import visible
from rootwalk.graph.render.text import headline
from rootwalk.graph.report.chain import chain_ends
from rootwalk.graph.report.quantities import quantity
from rootwalk.graph.report.reading import ReportData
from rootwalk.graph.serve.reading import JobLine, Pulse
from rootwalk.graph.serve.route import Fact, Hop
from rootwalk.graph.serve.snapshots import Problem, Snapshot
from rootwalk.otel_receiver.journal import is_journal_held, journal_path

__all__ = [
    "INDEX",
    "error_answer",
    "graph_answer",
    "heat_map_answer",
    "jobs_answer",
    "live_answer",
    "route_answer",
    "steps_answer",
]

# Routes with what they answer: told at /api/v1, and in the documents.
INDEX: Final = {
    "/api/v1/jobs": "the jobs of the store, the one that reported last first",
    "/api/v1/live?job=J": "step rate, the last steps, findings as they open and close",
    "/api/v1/verdict?job=J": "the verdict, schema rootwalk.verdict/1, as of the last diagnosis",
    "/api/v1/heat-map?job=J": "seconds by rank and step that each rank was late, null unknown",
    "/api/v1/steps?job=J": "the time of each shown step, and of a healthy one",
    "/api/v1/graph?job=J": "nodes and edges of the dependency graph, and each finding's path in it",
    "/api/v1/rank-step?job=J&rank=R&step=S": "one rank in one step: phases, collectives, waits by thread",
    "/api/v1/route?job=J&from=R&to=R": "the hops between two ranks' devices, with what they count",
}


def error_answer(code: str, message: str, hint: str | None = None) -> dict[str, Any]:
    """Return the one form of every error."""
    return {"schema": "rootwalk.error/1", "error": {"code": code, "message": message, "hint": hint}}


def jobs_answer(jobs: Iterable[JobLine]) -> dict[str, Any]:
    """Return the jobs."""
    return {"schema": "rootwalk.jobs/1", "jobs": [asdict(job) for job in jobs]}


def live_answer(
    path: Path,
    key: JobKey,
    pulse: Pulse,
    snapshot: Snapshot | None,
    problem: Problem | None,
) -> dict[str, Any]:
    """Return how a job does now."""
    return {
        "schema": "rootwalk.live/1",
        "now_unix_ns": time.time_ns(),
        "job": {
            "id": key.job,
            "attempt": key.attempt,
            "world_size": key.world_size,
            "ranks": pulse.ranks,
        },
        "receiver": "writing" if is_journal_held(journal_path(path)) else "not running",
        "last_step": pulse.last_step,
        "last_unix_ns": pulse.last_unix_ns,
        "step_s": pulse.step_s,
        "usual_step_s": pulse.usual_step_s,
        "healthy_step_s": snapshot.report.verdict.healthy_step_s if snapshot is not None else None,
        "steps_per_s": 1.0 / pulse.step_s if pulse.step_s else None,
        "steps": [{"step": step, "seconds": seconds} for step, seconds in pulse.steps],
        "findings": findings_answer(
            pulse.findings, snapshot.report.verdict if snapshot is not None else None
        ),
        "view": {
            "number": snapshot.number if snapshot is not None else 0,
            "made_unix_ns": snapshot.made_unix_ns if snapshot is not None else None,
            "cost_s": snapshot.cost_s if snapshot is not None else None,
            "problem": None if problem is None else asdict(problem),
        },
    }


def findings_answer(known: Iterable[LiveFinding], verdict: Verdict | None) -> list[dict[str, Any]]:
    """Return all findings, open ones first, then the latest: of live detection, and of the last diagnosis."""
    rows = {finding.id: _of_live(finding) for finding in known}
    for finding in verdict.findings if verdict is not None else ():
        rows.setdefault(finding.id, _of_verdict(finding))
    return sorted(
        rows.values(),
        key=lambda row: (row["state"] != "open", -(row["first_step"] or 0), row["id"]),
    )


def _of_live(finding: LiveFinding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "state": "open" if finding.is_open else "closed",
        "reason": finding.reason,
        "layer": finding.layer,
        "owner": finding.owner,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "rank": finding.rank,
        "host": finding.host,
        "share_s": finding.share_s,
        "first_step": finding.first_step,
        "last_step": finding.last_step,
        "onset_unix_ns": finding.onset_unix_ns,
        "named_unix_ns": finding.named_unix_ns,
        "closed_unix_ns": finding.closed_unix_ns,
        "text": visible(finding.text),
    }


def _of_verdict(finding: Finding) -> dict[str, Any]:
    onset = finding.onset
    return {
        "id": finding.id,
        "state": finding.state,
        "reason": finding.reason,
        "layer": finding.layer,
        "owner": finding.owner,
        "severity": finding.severity,
        "confidence": finding.confidence.band,
        "rank": finding.subject.rank,
        "host": finding.subject.host,
        "share_s": finding.seconds.share,
        "first_step": None if onset is None else onset.step,
        "last_step": None,
        "onset_unix_ns": None if onset is None else onset.unix_ns,
        "named_unix_ns": finding.named_unix_ns,
        "closed_unix_ns": None,
        "text": visible(headline(finding)),
    }


def heat_map_answer(report: ReportData) -> dict[str, Any]:
    """Return the map's numbers, all ranks and shown steps."""
    rows: list[list[float | None]] = []
    if report.lateness_s is not None:
        rounded = np.round(report.lateness_s, 6)
        rows = [[None if np.isnan(v) else float(v) for v in row] for row in rounded]
    return {
        "schema": "rootwalk.heat-map/1",
        "measure": "lateness" if report.is_lateness else "step",
        "unit": "s",
        "steps": list(report.clock.numbers) if report.clock is not None else [],
        "ranks": [row.rank for row in report.ranks],
        "hosts": [row.host_name or row.host_id for row in report.ranks],
        "values": rows,
        "query": report.lateness_query,
    }


def steps_answer(report: ReportData) -> dict[str, Any]:
    """Return the time of each shown step of the job, and what they are compared with."""
    verdict, clock = report.verdict, report.clock
    return {
        "schema": "rootwalk.steps/1",
        "unit": "s",
        "steps": [int(number) for number in clock.numbers] if clock is not None else [],
        "values": [round(float(s), 6) for s in clock.step_s] if clock is not None else [],
        "first_step": verdict.window.first_step,
        "last_step": verdict.window.last_step,
        "healthy_step_s": verdict.healthy_step_s,
    }


def graph_answer(report: ReportData) -> dict[str, Any]:
    """Return the dependency graph as the last diagnosis has stored it, and each finding's path in it."""
    graph = report.graph
    nodes = [] if graph is None else list(graph.nodes())
    edges = [] if graph is None else list(graph.edges())
    return {
        "schema": "rootwalk.graph/1",
        "nodes": [
            {"id": id_, "kind": n.kind, "label": n.label, "attributes": n.attributes}
            for id_, n in nodes
        ],
        "edges": [
            {
                "source": edge.source,
                "target": edge.target,
                "kind": edge.payload.kind,
                "seconds": edge.payload.seconds,
                "evidence": list(edge.payload.evidence_ids),
            }
            for edge in edges
        ],
        "paths": [
            {
                "finding": finding.id,
                "reason": finding.reason,
                "culprit": finding.subject.node,
                "links": [
                    {"source": source, "target": target, "kind": link.edge, "seconds": link.seconds}
                    for (source, target), link in zip(
                        chain_ends(finding.chain, graph), finding.chain, strict=True
                    )
                ],
            }
            for finding in report.verdict.findings
        ],
    }


def route_answer(hops: Iterable[Hop], window_s: int) -> dict[str, Any]:
    """Return the hops; counters are over the last `window_s` of the job."""
    return {
        "schema": "rootwalk.route/1",
        "window_s": window_s,
        "hops": [asdict(hop) | {"facts": [_fact(fact) for fact in hop.facts]} for hop in hops],
    }


def _fact(fact: Fact) -> dict[str, Any]:
    return asdict(fact) | {"text": quantity(fact.value, fact.unit)}
