"""Diagnose a store: read, analyse, write the dependency graph, read it back, and decide from it.

The composition of the method. What the verdict claims went through the store: the same rows that a reader can query.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rootwalk.graph import graph_store, job_choice
from rootwalk.graph.accuse import build_dependencies
from rootwalk.graph.agent_cost import AgentCost, read_agent_cost
from rootwalk.graph.align import ClockOffsets
from rootwalk.graph.analysis import (
    Analysis,
    NotReplayed,
    Question,
    analyse,
    choose_window,
    step_clock,
)
from rootwalk.graph.balance import Balance, weigh
from rootwalk.graph.brief import without_guesses
from rootwalk.graph.closing import Closing, read_closing
from rootwalk.graph.columns import JobData
from rootwalk.graph.counters.refine import refine
from rootwalk.graph.counters.scene import Scene
from rootwalk.graph.dependencies import DependencyGraph
from rootwalk.graph.detail import told_whole
from rootwalk.graph.detect import MEDIAN_STEPS, MIN_RATIO
from rootwalk.graph.device.chain import follow_device
from rootwalk.graph.finding_store import load_live_findings, save_findings, with_live_times
from rootwalk.graph.findings import ScoreContext
from rootwalk.graph.flows.measured import by_device_times
from rootwalk.graph.hangs.live_diagnosis import add_closed, read_closed, with_closed
from rootwalk.graph.hangs.live_judge import Judgement
from rootwalk.graph.input_waits import MIN_STEPS, read_inputs, waits_of_phases
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.job_quality import bad_times, find_missing, unknown_ends
from rootwalk.graph.known import DeviceTimes, describe_known, read_device_times
from rootwalk.graph.large.reading import align, read_details
from rootwalk.graph.large.selection import Selection, with_all_victims
from rootwalk.graph.live.findings import LiveFinding
from rootwalk.graph.model import Cost, Evidence, Outcome, Verdict, Victims
from rootwalk.graph.own_process import peak_resident_bytes
from rootwalk.graph.peer_baseline import MIN_LOST_RATIO, ask_peers, since_the_start, that_stand
from rootwalk.graph.profiles.evidence import explain
from rootwalk.graph.queues import without_usual_queues
from rootwalk.graph.reasons.priors import Priors, choose_priors, default_priors
from rootwalk.graph.releases import (
    Regression,
    build_regression,
    compare,
    conclude_release,
    read_attempts,
)
from rootwalk.graph.score import ScoredFinding, find_victims, score
from rootwalk.graph.source_cases import SourceCase, conclude_source, read_source
from rootwalk.graph.stored_quality import read_stored_quality
from rootwalk.graph.verdict import (
    doubt_quiet,
    empty_verdict,
    hides_ends,
    lacks_members,
    quiet_verdict,
    slow_verdict,
    to_json,
    with_cost,
    with_priors,
)
from rootwalk.instrumentation.errors import StoreError

logger = logging.getLogger(__name__)

# Of a large job so many healthy steps are looked into: medians of them say what is usual.
MAX_READ_HISTORY = 16


class Investigation:
    """What was read, and what follows from it: only the constructor needs the store, which others wait for.

    Attributes:
        key: Which job, None for an empty store.
        offsets: Clock offsets by host.
        graph: The dependency graph to store, None before `analyse` and when nothing stands out.
        agents: What the agents cost.
    """

    def __init__(
        self,
        connection: Any,
        job: str | None,
        steps: tuple[int, int] | None,
        since_step: int = 0,
        priors: Priors | None = None,
    ) -> None:
        self._priors = priors or default_priors()
        self.key = job_choice.choose_job(connection, job)
        self._asked_job, self._is_asked = job or "unknown", steps is not None
        self.agents = AgentCost()
        self.offsets = ClockOffsets({}, 0.0, ())
        self.graph: DependencyGraph | None = None
        self.evidence: tuple[Evidence, ...] = ()
        self._analysis: Analysis | None = None
        self._weighed: Analysis | None = None
        self._question: Question | None = None
        self._selection: Selection | None = None
        self._regression: Regression | None = None
        self._balance: Balance | None = None
        self._closed: tuple[Judgement, ...] = ()
        self._closing: Closing | None = None
        self._is_analysed = True  # where no details are read, there is nothing to do
        self._quiet: Question | None = None
        self._device: DeviceTimes | None = None
        self._live: tuple[LiveFinding, ...] = ()
        self._quality = read_stored_quality(connection, self.key.job if self.key else job)
        if self.key is None:
            return
        self._live = load_live_findings(connection, self.key.job, self.key.attempt)
        last, ranks = job_choice.read_extent(connection, self.key)
        span = job_choice.outline_steps(last, ranks, steps, since_step)
        outline = graph_store.read_outline(connection, self.key, span)
        self.agents = read_agent_cost(connection, self.key.job, self.key.attempt)
        self._data, self.offsets = align(connection, self.key, outline)
        self._clock = step_clock(self._data)
        if steps is None:
            self._closed = read_closed(connection, self.key)
        window_end = None if steps is None else steps[1]
        self._closing = read_closing(connection, self.key, self.offsets, window_end)
        self._quality = (
            *self._data.quality,
            *self.offsets.quality,
            *find_missing(self._data, self.agents),
            *self._quality,
        )
        inputs = read_inputs(connection, self.key.job, self.key.attempt, span)
        if inputs:
            self._device = read_device_times(connection, self.key.job, self.key.attempt, span)
        self._data = self._read = replace(self._data, inputs=inputs)
        self._question = choose_window(self._clock, steps, is_profile=bool(inputs))
        if self._question is None:
            return
        if inputs and not self._question.history:
            is_alone = np.unique(self._data.steps.rank).size == 1
            self._question = replace(self._question, is_alone=is_alone)
        if not self._question.is_slow and steps is None:
            self._compare_releases(connection, self.key)
        if not self._question.is_slow and self._question.history and self._regression is None:
            self._quiet = self._question
            self._question = ask_peers(self._clock, self._question, is_asked=self._is_asked)
        if self._question.is_slow or not self._question.history:
            self._read_details(connection, self.key, self._question)

    def _compare_releases(self, connection: Any, key: JobKey) -> None:
        """Hold a job whose own history shows nothing against its start before."""
        attempts = read_attempts(connection, key)
        self._regression = None if attempts is None else compare(key.job, *attempts)
        if self._regression is not None:
            self.graph, self.evidence = build_regression(self._regression)

    @property
    def window(self) -> tuple[JobData, Analysis] | None:
        """What was analysed and what follows from it; None where no window stands out."""
        return None if self._analysis is None else (self._read, self._analysis)

    def _read_details(self, connection: Any, key: JobKey, question: Question) -> None:
        # By waits before reading, which puts back what was not told alike; by collectives once they are read.
        question = told_whole(self._data, self._clock, question)
        details = read_details(connection, key, self._data, self._clock, question, self.offsets)
        self._read, self._selection = details.data, details.selection
        if not question.history and not self._read.inputs:
            self._read = replace(self._read, inputs=waits_of_phases(self._read.phases))
        self._question = told_whole(self._read, self._clock, question)
        if details.selection is None:
            self._data = details.data
        else:
            self._quality = (*self._quality, *details.selection.quality())
        problems = (*bad_times(details.bad_times), *unknown_ends(self._read))
        self._quality = (*self._quality, *problems)
        self._is_analysed = False

    def analyse(self) -> None:
        """Find what made the window slow, and build the graph that says so; safe twice."""
        question = self._question
        if question is None or self._is_analysed:
            return
        self._is_analysed = True
        asked = question
        if self._selection is not None:
            asked = replace(question, history=question.history[-MAX_READ_HISTORY:])
        analysis = analyse(self._read, self._clock, asked, self.offsets.sigma_s)
        self._quality = (*self._quality, *analysis.quality)
        if isinstance(analysis, NotReplayed):
            return
        self._weighed = analysis
        if not question.is_slow:
            what_if = analysis.counterfactual
            # Without history only a difference between ranks can be seen; equal ranks say nothing.
            is_short = question.is_alone and question.stop - question.start < MIN_STEPS
            least = MIN_RATIO if self._quiet is None else 1.0 + MIN_LOST_RATIO
            if is_short or what_if.simulated_s <= least * what_if.ideal_s:
                return
            question = replace(question, is_slow=True)
            if self._quiet is not None:
                question = since_the_start(self._clock, question)
            self._question = question
        if self._selection is not None:
            analysis = with_all_victims(analysis, self._selection)
        self._analysis = analysis
        self.graph, self.evidence = build_dependencies(self._read, self._clock, question, analysis)

    def refine(self, connection: Any) -> None:
        """Ask counters about causes that the records leave open, and profiles; safe twice."""
        self.analyse()
        if self.graph is not None and self._analysis is not None and self._question is not None:
            scene = self._balanced(connection, self._question, self._analysis)
            for ask in (refine, explain, follow_device):
                self.evidence = ask(connection, scene, self.graph, self.evidence)
        has_end = self._closing is not None and self._closing.end is not None
        self.graph = self.graph or (DependencyGraph() if has_end or self._closed else None)
        if self._closing is not None and self.graph is not None:
            self.evidence = self._closing.add_to(self.graph, self.evidence)
        if self._closed and self.graph is not None:
            self.evidence = add_closed(self.graph, self._closed, self.evidence)

    def _balanced(self, connection: Any, question: Question, analysis: Analysis) -> Scene:
        """Return the window; where no waits for collectives are told, with what sums say of who was late."""
        offset_s_by_host = self.offsets.offset_s_by_host
        scene = Scene(self._read, self._clock, question, analysis, offset_s_by_host)
        is_hidden = hides_ends(self._quality) and not lacks_members(analysis, self._quality)
        if self._balance is None and is_hidden:
            self._balance = found = weigh(connection, scene)
            if found is not None:
                self._analysis, self.graph, self.evidence = (
                    found.analysis,
                    found.graph,
                    found.evidence,
                )
                scene = replace(scene, analysis=found.analysis)
        return scene

    def conclude(self, graph: DependencyGraph | None, evidence: tuple[Evidence, ...]) -> Verdict:
        """Return the verdict, from the dependency graph as the store gives it back."""
        verdict = self._of_steps(graph, evidence)
        if self._closed and graph is not None:
            verdict = with_closed(verdict, self._closed, graph, evidence)
        if self._closing is not None:
            verdict = self._closing.conclude(verdict, graph or DependencyGraph(), evidence)
        return verdict

    def _of_steps(self, graph: DependencyGraph | None, evidence: tuple[Evidence, ...]) -> Verdict:
        self.analyse()
        if self.key is None:
            return empty_verdict(self._asked_job, None, None, self._quality)
        if self._question is None:
            return empty_verdict(self.key.job, self.key.attempt, self.key.world_size, self._quality)
        if not self._question.is_slow:
            return self._say_quiet(self._quiet or self._question, graph, evidence)
        scored: tuple[ScoredFinding, ...] = ()
        victims = Victims()
        if graph is not None and self._analysis is not None:
            context = self._context(self._analysis.counterfactual.ideal_s, self._question)
            scored = score(graph, evidence, context)
            if self._selection is not None:
                scored = self._selection.without_waits(scored)
            if self._balance is not None:
                scored = self._balance.that_stand(scored)
            scored = without_usual_queues(scored)
            if not self._question.history and not self._question.is_alone:
                scored = that_stand(scored, self._analysis, self._read, self._clock, self._question)
            if self._quiet is not None and not scored:
                return self._say_quiet(self._quiet, None)
            if not self._is_asked:
                scored = without_guesses(scored, self._data, self._clock, self._question)
            victims = find_victims(graph, scored)
        verdict = slow_verdict(
            self._data,
            self._clock,
            self._question,
            self._analysis,
            scored,
            victims,
            self._quality,
            is_balanced=self._balance is not None,
        )
        if self._quiet is not None and not verdict.findings:
            # As on GPUs, whose hosts do not know when collectives end: that ranks differ there says nothing.
            return self._say_quiet(self._quiet, None)
        verdict = self._with_known(verdict, self._question)
        return with_priors(with_live_times(verdict, self._live), self._priors)

    def _with_rare(self, question: Question) -> Question:
        """Return a quiet window as long as what was asked about: what costs much may come every hundred steps."""
        asked = self._question
        if self._quiet is None or asked is None:
            return question
        return replace(question, start=min(question.start, asked.start))

    def _say_quiet(
        self,
        question: Question,
        graph: DependencyGraph | None,
        evidence: tuple[Evidence, ...] = (),
    ) -> Verdict:
        quiet = quiet_verdict(self._data, self._clock, self._with_rare(question), self._quality)
        if self._regression is not None and graph is not None:
            context = self._context(self._regression.healthy_s, question)
            stands = conclude_release(quiet, self._regression, graph, evidence, context)
            if stands is not None:
                return with_priors(stands, self._priors)
        return self._with_known(
            doubt_quiet(quiet, self._data) if self.offsets.quality else quiet, question
        )

    def _with_known(self, verdict: Verdict, question: Question) -> Verdict:
        """Return a verdict that names nobody with what is known all the same."""
        if verdict.outcome != Outcome.INSUFFICIENT_EVIDENCE:
            return verdict
        known = describe_known(
            self._data, self._clock, question, self._analysis or self._weighed, self._device
        )
        return replace(verdict, known=known)

    def _context(self, ideal_s: float, question: Question) -> ScoreContext:
        step_s = self._clock.step_s
        history = step_s[list(question.history)]
        onset = question.start if question.onset is None else question.onset
        onset_s = float(self._clock.start_s[onset])
        return ScoreContext(
            job=self._data.job,
            attempt=self._data.attempt,
            world_size=self._data.world_size or len(self._data.ranks),
            step_s=float(step_s[question.start : question.stop].mean()),
            healthy_s=float(np.median(history)) if history.size else ideal_s,
            step_count=question.stop - question.start,
            onset_step=self._clock.numbers[onset],
            onset_unix_ns=self._data.origin_unix_ns + round(onset_s * 1e9),
            is_open=question.is_open,
            has_history=bool(history.size),
            doubled_ranks=frozenset(self._data.processes_by_doubled_rank),
            is_aligned=not self.offsets.quality,
            is_balanced=self._balance is not None,
            is_short=not history.size and question.stop - question.start < MEDIAN_STEPS,
            priors=self._priors,
        )


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A verdict, and what was read of the job to come to it."""

    verdict: Verdict
    case: SourceCase | Investigation


def diagnose(
    store_path: Path,
    *,
    job: str | None = None,
    steps: tuple[int, int] | None = None,
    since_step: int = 0,
    priors: str | None = None,
) -> Verdict:
    """Return the verdict of `investigate`."""
    found = investigate(store_path, job=job, steps=steps, since_step=since_step, priors=priors)
    return found.verdict


def investigate(
    store_path: Path,
    *,
    job: str | None = None,
    steps: tuple[int, int] | None = None,
    since_step: int = 0,
    priors: str | None = None,
) -> Diagnosis:
    """Return the verdict for one job of a store, and leave graph, evidence and findings in the store.

    Args:
        store_path: A file that `rootwalk run`, `receive` or `import` has written; a receiver may be writing it.
        job: Which job; None for the store's only one.
        steps: First and last step of the window; None for the last slow episode, else the last 50 steps.
        since_step: The job's steps before this one are not read.
        priors: A setting, or a file; None for what the environment says.

    Raises:
        StoreError: If the file cannot be read.
        ConfigError: If the job or the priors cannot be chosen.
    """
    from rootwalk.otel_receiver import store

    began_s, chosen = time.perf_counter(), choose_priors(priors)
    with store.reading(store_path) as connection:
        found = read_source(connection, job, steps) or Investigation(
            connection, job, steps, since_step, chosen
        )
    if not isinstance(found, Investigation):
        return Diagnosis(_with_time(conclude_source(store_path, found, chosen), began_s), found)
    investigation, agents = found, found.agents
    investigation.analyse()
    try:
        with store.writing(store_path, vacuums=False) as connection:
            verdict = conclude_in_store(connection, investigation)
    except StoreError as error:
        # A read-only file still gets its answer; only the graph cannot be queried afterwards.
        logger.warning("the dependency graph is not stored: %s", error)
        with store.reading(store_path) as connection:
            investigation.refine(connection)
        verdict = investigation.conclude(investigation.graph, investigation.evidence)
    verdict = by_device_times(store_path, found.key, verdict, steps, since_step)
    cost = agents.with_diagnosis(time.perf_counter() - began_s, peak_resident_bytes())
    return Diagnosis(with_cost(verdict, cost), investigation)


def _with_time(verdict: Verdict, began_s: float) -> Verdict:
    return with_cost(verdict, Cost(round(time.perf_counter() - began_s, 3), peak_resident_bytes()))


def conclude_in_store(connection: Any, investigation: Investigation) -> Verdict:
    """Write the graph, read it back, decide from what came back, and write the findings."""
    key = investigation.key
    if key is None:
        return investigation.conclude(None, ())
    investigation.refine(connection)
    graph_store.save_clock_offsets(connection, key, investigation.offsets.offset_s_by_host)
    graph_store.save_graph(
        connection, key, investigation.graph or DependencyGraph(), investigation.evidence
    )
    graph, evidence = graph_store.load_graph(connection, key)
    verdict = investigation.conclude(graph, evidence)
    save_findings(connection, key, verdict.findings, to_json(verdict), time.time_ns())
    return verdict
