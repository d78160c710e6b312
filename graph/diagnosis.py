"""Diagnose a store: read, analyse, write the dependency graph, read it back, and decide from it.

The composition of the method. What the verdict claims went through the store: the same rows that a reader can query.
"""

from __future__ import annotations

import logging
import resource
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rootwalk.graph import graph_store
from rootwalk.graph.accuse import build_dependencies
from rootwalk.graph.agent_cost import AgentCost, read_agent_cost
from rootwalk.graph.align import ClockOffsets, find_clock_offsets
from rootwalk.graph.analysis import (
    Analysis,
    Question,
    StepClock,
    analyse,
    choose_window,
    step_clock,
)
from rootwalk.graph.columns import JobData, shift_clocks
from rootwalk.graph.dependencies import DependencyGraph
from rootwalk.graph.detect import MEDIAN_STEPS, MIN_RATIO
from rootwalk.graph.finding_store import load_live_findings, save_findings
from rootwalk.graph.findings import ScoreContext, victim_ranks
from rootwalk.graph.graph_store import JobKey
from rootwalk.graph.hang_diagnosis import HangCase, conclude_hang, read_hang
from rootwalk.graph.live_findings import LiveFinding, find_same
from rootwalk.graph.model import Cost, DataQuality, Evidence, QualityCode, Verdict, Victims
from rootwalk.graph.score import ScoredFinding, score
from rootwalk.graph.told_waits import even_waits
from rootwalk.graph.verdict import empty_verdict, quiet_verdict, slow_verdict, to_json, with_cost
from rootwalk.instrumentation.errors import StoreError

logger = logging.getLogger(__name__)

# Steps that are read to find episodes and history, up to the last one or around those that the user named: so many of
# all ranks together, whatever the store has, but at least so many of each rank. An older onset is not found.
MAX_OUTLINE_RANK_STEPS = 1_000_000
MIN_OUTLINE_STEPS = 2_000
MAX_OUTLINE_STEPS = 10_000
# Steps read after those that the user named: whether a slowdown goes on after them.
MARGIN_STEPS = 100
# Clocks are compared over the last steps: enough collectives for the fit, few enough to read quickly.
MAX_ALIGNMENT_STEPS = 200


class Investigation:
    """What was read, and what follows from it: only the constructor needs the store, which others wait for.

    Attributes:
        key: Which job, None for an empty store.
        offsets: Clock offsets by host.
        graph: The dependency graph to store, None before `analyse` and when the window does not stand out.
        agents: What the agents cost.
    """

    def __init__(
        self,
        connection: Any,
        job: str | None,
        steps: tuple[int, int] | None,
        since_step: int = 0,
    ) -> None:
        self.key = graph_store.choose_job(connection, job)
        self._asked_job = job or "unknown"
        self.agents = AgentCost()
        self.offsets = ClockOffsets({}, 0.0, ())
        self.graph: DependencyGraph | None = None
        self.evidence: tuple[Evidence, ...] = ()
        self._analysis: Analysis | None = None
        self._question: Question | None = None
        self._is_analysed = True  # where no details are read, there is nothing to do
        self._live: tuple[LiveFinding, ...] = ()
        if self.key is None:
            return
        self._live = load_live_findings(connection, self.key.job, self.key.attempt)
        last, ranks = graph_store.read_extent(connection, self.key)
        span = _outline_steps(last, ranks, steps, since_step)
        outline = graph_store.read_outline(connection, self.key, span)
        self.agents = read_agent_cost(connection, self.key.job, self.key.attempt)
        self._data, self.offsets = _align(connection, self.key, outline)
        self._clock = step_clock(self._data)
        self._quality = (*self._data.quality, *self.offsets.quality, *_missing_ranks(self._data))
        self._question = choose_window(self._clock, steps)
        if self._question is None:
            return
        if self._question.is_slow or not self._question.history:
            self._read_details(connection, self.key, self._question)

    def _read_details(self, connection: Any, key: JobKey, question: Question) -> None:
        self._data, bad_times = _read_details(
            connection, key, self._data, self._clock, question, self.offsets
        )
        if bad_times:
            item = DataQuality(
                QualityCode.BAD_TIME, f"{bad_times} phases end before they start", bad_times
            )
            self._quality = (*self._quality, item)
        self._quality = (*self._quality, *_unknown_ends(self._data))
        self._is_analysed = False

    def analyse(self) -> None:
        """Find what made the window slow, and build the graph that says so; safe twice."""
        question = self._question
        if question is None or self._is_analysed:
            return
        self._is_analysed = True
        analysis = analyse(self._data, self._clock, question, self.offsets.sigma_s)
        if analysis is None:
            return
        self._quality = (*self._quality, *analysis.quality)
        if not question.is_slow:
            what_if = analysis.counterfactual
            # Without history only a difference between ranks can be seen; equal ranks say nothing, nor do few steps.
            is_short = question.stop - question.start < MEDIAN_STEPS
            if is_short or what_if.simulated_s <= MIN_RATIO * what_if.ideal_s:
                return
            question = self._question = replace(question, is_slow=True)
        self._analysis = analysis
        self.graph, self.evidence = build_dependencies(self._data, self._clock, question, analysis)

    def conclude(self, graph: DependencyGraph | None, evidence: tuple[Evidence, ...]) -> Verdict:
        """Return the verdict, from the dependency graph as the store gives it back."""
        self.analyse()
        if self.key is None:
            return empty_verdict(self._asked_job, None, None, ())
        if self._question is None:
            return empty_verdict(self.key.job, self.key.attempt, self.key.world_size, self._quality)
        if not self._question.is_slow:
            return quiet_verdict(self._data, self._clock, self._question, self._quality)
        scored: tuple[ScoredFinding, ...] = ()
        victims = Victims()
        if graph is not None and self._analysis is not None:
            scored = score(graph, evidence, self._context(self._analysis, self._question))
            victims = _victims(graph, scored)
        verdict = slow_verdict(
            self._data, self._clock, self._question, self._analysis, scored, victims, self._quality
        )
        return _with_live_times(verdict, self._live)

    def _context(self, analysis: Analysis, question: Question) -> ScoreContext:
        step_s = self._clock.step_s
        history = step_s[list(question.history)]
        onset_s = float(self._clock.start_s[question.start])
        return ScoreContext(
            job=self._data.job,
            attempt=self._data.attempt,
            world_size=self._data.world_size or len(self._data.ranks),
            step_s=float(step_s[question.start : question.stop].mean()),
            healthy_s=float(np.median(history))
            if history.size
            else analysis.counterfactual.ideal_s,
            step_count=question.stop - question.start,
            onset_step=self._clock.numbers[question.start],
            onset_unix_ns=self._data.origin_unix_ns + round(onset_s * 1e9),
            is_open=question.is_open,
            has_history=bool(history.size),
            doubled_ranks=frozenset(self._data.processes_by_doubled_rank),
        )


def diagnose(
    store_path: Path,
    *,
    job: str | None = None,
    steps: tuple[int, int] | None = None,
    since_step: int = 0,
) -> Verdict:
    """Return the verdict for one job of a store, and leave graph, evidence and findings in the store.

    Args:
        store_path: A file that `rootwalk run`, `receive` or `import` has written; a receiver may be writing it.
        job: Which job; None for the store's only one.
        steps: First and last step of the window; None for the last slow episode, else the last 50 steps.
        since_step: The job's steps before this one are not read.

    Raises:
        StoreError: If the file cannot be read.
        ConfigError: If the job cannot be chosen.
    """
    from rootwalk.otel_receiver import store

    began_s = time.perf_counter()
    with store.reading(store_path) as connection:
        hang = read_hang(connection, job) if steps is None else None
        if hang is not None and hang.answers:
            investigation: HangCase | Investigation = hang
        else:
            investigation = Investigation(connection, job, steps, since_step)
    if isinstance(investigation, HangCase):
        verdict = conclude_hang(store_path, investigation)
        return with_cost(verdict, Cost(round(time.perf_counter() - began_s, 3), _peak_bytes()))
    investigation.analyse()
    try:
        with store.writing(store_path, vacuums=False) as connection:
            verdict = conclude_in_store(connection, investigation)
    except StoreError as error:
        # A read-only file still gets its answer; only the graph cannot be queried afterwards.
        logger.warning("the dependency graph is not stored: %s", error)
        verdict = investigation.conclude(investigation.graph, investigation.evidence)
    agents = investigation.agents
    cost = Cost(
        diagnose_s=round(time.perf_counter() - began_s, 3),
        peak_rss_bytes=_peak_bytes(),
        agent_cpu_ratio=agents.cpu_ratio,
        agent_rss_bytes=agents.rss_bytes,
        bytes_per_rank_step=agents.bytes_per_rank_step,
        events_per_rank_step=agents.events_per_rank_step,
        bpf_s=agents.bpf_s,
        dropped=agents.dropped,
        lowered_hosts=agents.lowered_hosts,
    )
    return with_cost(verdict, cost)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def conclude_in_store(connection: Any, investigation: Investigation) -> Verdict:
    """Write the graph, read it back, decide from what came back, and write the findings."""
    key = investigation.key
    if key is None:
        return investigation.conclude(None, ())
    graph_store.save_clock_offsets(connection, key, investigation.offsets.offset_s_by_host)
    graph_store.save_graph(
        connection, key, investigation.graph or DependencyGraph(), investigation.evidence
    )
    graph, evidence = graph_store.load_graph(connection, key)
    verdict = investigation.conclude(graph, evidence)
    save_findings(connection, key, verdict.findings, to_json(verdict), time.time_ns())
    return verdict


def _outline_steps(
    last: int, ranks: int, asked: tuple[int, int] | None, since_step: int
) -> tuple[int, int]:
    """Return the first and last step to read of a job with so many ranks whose last step is `last`."""
    count = min(max(MAX_OUTLINE_RANK_STEPS // max(ranks, 1), MIN_OUTLINE_STEPS), MAX_OUTLINE_STEPS)
    if asked is None:
        return max(last - count + 1, since_step), last
    return max(asked[0] - count, since_step), min(asked[1] + MARGIN_STEPS, last)


def _with_live_times(verdict: Verdict, known: tuple[LiveFinding, ...]) -> Verdict:
    """Return the verdict with the ids and times of findings that live detection saw first."""
    first, last = verdict.window.first_step, verdict.window.last_step
    if first is None or last is None:
        return verdict
    findings = []
    for finding in verdict.findings:
        same = find_same(known, finding.reason, finding.subject.node, (first, last))
        findings.append(
            finding
            if same is None
            else replace(
                finding,
                id=same.id,
                detected_unix_ns=same.detected_unix_ns,
                named_unix_ns=same.named_unix_ns,
            )
        )
    return replace(verdict, findings=tuple(findings))


def _align(connection: Any, key: JobKey, outline: JobData) -> tuple[JobData, ClockOffsets]:
    """Return the outline on the reference clock, and the offsets of the hosts' clocks."""
    host_by_rank = {row.rank: row.host_id for row in outline.ranks}
    if len(set(host_by_rank.values())) < 2 or outline.steps.step.size == 0:
        return outline, ClockOffsets(dict.fromkeys(host_by_rank.values(), 0.0), 0.0, ())
    last = int(outline.steps.step.max())
    chosen = (max(last - MAX_ALIGNMENT_STEPS, 0), last)
    collectives = graph_store.read_collectives(connection, key, outline.origin_unix_ns, chosen)
    offsets = find_clock_offsets(collectives, host_by_rank)
    return shift_clocks(outline, _by_rank(outline, offsets)), offsets


def _by_rank(data: JobData, offsets: ClockOffsets) -> dict[int, float]:
    return {row.rank: offsets.offset_s_by_host.get(row.host_id, 0.0) for row in data.ranks}


def _read_details(
    connection: Any,
    key: JobKey,
    data: JobData,
    clock: StepClock,
    question: Question,
    offsets: ClockOffsets,
) -> tuple[JobData, int]:
    """Return the job with phases, collectives and stalls of history and window, aligned."""
    first = min([*question.history, question.start])
    span = (clock.numbers[first], clock.numbers[question.stop - 1])
    phases, bad_times = graph_store.read_phases(connection, key, data.origin_unix_ns, span)
    details = replace(
        data,
        phases=phases,
        collectives=graph_store.read_collectives(connection, key, data.origin_unix_ns, span),
        stalls=graph_store.read_stalls(connection, key, data.origin_unix_ns, span),
    )
    aligned = shift_clocks(details, _by_rank(data, offsets))
    # The steps were aligned before; shifting them again would move them twice.
    aligned = replace(aligned, steps=data.steps)
    history = [clock.numbers[i] for i in question.history]
    window = clock.numbers[question.start : question.stop]
    return even_waits(aligned, history, window), bad_times


def _unknown_ends(data: JobData) -> tuple[DataQuality, ...]:
    """Return an item when the host was not told when collectives completed: who waited is not known then."""
    count = int((~data.collectives.is_end_known).sum())
    if not count:
        return ()
    text = f"{count} collectives without their completion: their backend's device times are not read yet"
    return (DataQuality(QualityCode.MISSING_EDGE, text, count),)


def _missing_ranks(data: JobData) -> tuple[DataQuality, ...]:
    if data.world_size is None:
        return ()
    seen = {int(rank) for rank in data.steps.rank}
    missing = [rank for rank in range(data.world_size) if rank not in seen]
    if not missing:
        return ()
    listed = ", ".join(str(rank) for rank in missing[:8]) + (", …" if len(missing) > 8 else "")
    text = f"no complete step from {len(missing)} of {data.world_size} ranks ({listed})"
    return (DataQuality(QualityCode.RANK_MISSING, text, len(missing)),)


def _victims(graph: DependencyGraph, scored: tuple[ScoredFinding, ...]) -> Victims:
    """Return who waited for the first finding's culprit, from the edge that says so."""
    if not scored:
        return Victims()
    first = scored[0].finding
    link = next((item for item in first.chain if item.edge == "waits_for"), None)
    if link is None:
        return Victims()
    for edge in graph.edges():
        is_wait = edge.source == link.node and edge.payload.kind == "waits_for"
        target = graph.node(edge.target)
        if is_wait and target is not None and target.attributes.get("rank") == first.subject.rank:
            ranks = victim_ranks(edge.payload.attributes)
            return Victims(ranks, len(ranks), edge.payload.seconds)
    return Victims()
