"""Judge a store by the reports of ranks that made no progress: is it stuck at its end, and was it stuck before.

A store of a running job, of one that was ended while it was stuck, and the same store a week later give one answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rootwalk.graph.dependencies import DependencyGraph
from rootwalk.graph.finding_store import load_live_findings, with_named_times
from rootwalk.graph.hangs.flight_store import find_last_attempt
from rootwalk.graph.hangs.live_judge import Judgement, judge
from rootwalk.graph.hangs.live_rules import live_rule_of
from rootwalk.graph.hangs.live_verdict import (
    build_live_graph,
    live_findings_of,
    live_verdict,
    view_hang,
)
from rootwalk.graph.hangs.progress import find_progress_jobs, read_evidence, read_still
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.keeping import keep_verdict
from rootwalk.graph.live.findings import LiveFinding
from rootwalk.graph.model import DataQuality, Evidence, Outcome, QualityCode, Verdict, Victims

__all__ = ["LiveCase", "add_closed", "conclude_live", "find_silent", "read_closed", "read_live"]
__all__ += ["with_closed"]

# Times without progress that were over which are looked into, the last ones: a job with more has another trouble.
MAX_CLOSED: Final = 8
# Ranks that a statement names.
MAX_LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class LiveCase:
    """A job that was stuck at the end of its evidence, what is wrong with that, and what was named while it lasted."""

    judgement: Judgement
    quality: tuple[DataQuality, ...]
    known: tuple[LiveFinding, ...] = ()

    @property
    def job(self) -> str:
        """Its name."""
        return self.judgement.evidence.job

    @property
    def attempt(self) -> int:
        """Which launch of it."""
        return self.judgement.evidence.attempt


def read_live(connection: Any, job: str | None) -> LiveCase | None:
    """Return the job that is stuck at the end of a store; None where none is, or it only waits for work.

    Args:
        connection: An open store.
        job: Which job; None for the store's only one.
    """
    found = find_progress_jobs(connection, job)
    if len(found) != 1:
        return None
    name, attempt = found[0]
    if job is None and _has_others(connection, name):
        return None
    last_attempt = find_last_attempt(connection, name)
    if last_attempt is not None and attempt < last_attempt:
        return None
    times = read_still(connection, name, attempt)
    if not times or not times[-1].is_open:
        return None
    judgement = judge(read_evidence(connection, name, attempt, times[-1]))
    if not judgement.is_stuck or judgement.is_waiting_for_work or judgement.operation is None:
        return None
    known = load_live_findings(connection, name, attempt)
    return LiveCase(judgement, find_silent(judgement), known)


def _has_others(connection: Any, job: str) -> bool:
    rows = connection.execute("SELECT DISTINCT job FROM jobs WHERE ranks > 0").fetchall()
    return any(str(name) != job for (name,) in rows)


def find_silent(judgement: Judgement) -> tuple[DataQuality, ...]:
    """Return a statement about ranks of which nothing was reported while the job was stuck."""
    told = judgement.evidence
    silent = sorted(told.known - told.ranks.keys() - told.ends.keys())
    if not silent:
        return ()
    listed = ", ".join(map(str, silent[:MAX_LISTED])) + (", …" if len(silent) > MAX_LISTED else "")
    text = f"no reports of {len(silent)} ranks while the job stood still ({listed})"
    return (DataQuality(QualityCode.RANK_MISSING, text, len(silent)),)


def read_closed(connection: Any, key: JobKey) -> tuple[Judgement, ...]:
    """Return the hangs of a job that were over, and after which it went on, in order."""
    times = [one for one in read_still(connection, key.job, key.attempt) if not one.is_open]
    judged = (
        judge(read_evidence(connection, key.job, key.attempt, one)) for one in times[-MAX_CLOSED:]
    )
    return tuple(judgement for judgement in judged if judgement.is_hang)


def add_closed(
    graph: DependencyGraph, closed: Sequence[Judgement], evidence: tuple[Evidence, ...]
) -> tuple[Evidence, ...]:
    """Add hangs that were over to a dependency graph, and return the evidence with theirs; safe twice."""
    for judgement in closed:
        own, rows = build_live_graph(judgement)
        for id_, payload in own.nodes():
            if graph.node(id_) is None:
                graph.add_node(id_, payload)
        for edge in own.edges():
            graph.add_edge(edge.source, edge.target, edge.payload)
        known = {row.id for row in evidence}
        evidence = (*evidence, *(row for row in rows if row.id not in known))
    return evidence


def with_closed(
    verdict: Verdict,
    closed: Sequence[Judgement],
    graph: DependencyGraph,
    evidence: Sequence[Evidence],
) -> Verdict:
    """Return the verdict with the hangs that were over: beside what else was found, or alone.

    A job that was stuck and went on has lost that time, however its later steps are.
    """
    findings = tuple(f for one in closed for f in live_findings_of(one, graph, evidence))
    if not findings:
        return verdict
    if verdict.findings:
        return replace(verdict, findings=(*verdict.findings, *findings))
    last = closed[-1]
    return replace(
        verdict,
        outcome=Outcome.FINDING,
        kind="hang",
        syndrome=live_rule_of(last.hang.blames[0].reason).syndrome,
        findings=findings,
        victims=Victims(last.hang.victims, len(last.hang.victims), None),
        hang=view_hang(last),
    )


def conclude_live(store_path: Path, case: LiveCase) -> Verdict:
    """Return the verdict, and leave graph, evidence and findings in the store if it can be written."""
    graph, evidence = build_live_graph(case.judgement)
    key = JobKey(case.job, case.attempt, case.judgement.evidence.world_size)

    def decide(stored: DependencyGraph, rows: Sequence[Evidence]) -> Verdict:
        return with_named_times(
            live_verdict(case.judgement, case.quality, stored, rows), case.known
        )

    return keep_verdict(store_path, key, graph, evidence, decide)
