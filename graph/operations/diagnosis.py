"""Diagnose a job of which every operation is recorded: read, align, replay, store the graph, decide from it.

Peers are compared with each other: a job that is slower as a whole than it was before is not seen here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from rootwalk.graph import job_choice
from rootwalk.graph.dependencies import DependencyGraph
from rootwalk.graph.findings import ScoreContext, victim_ranks
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.keeping import keep_verdict
from rootwalk.graph.model import (
    DataQuality,
    EdgeKind,
    Evidence,
    MissingSensor,
    QualityCode,
    Verdict,
    Victims,
    Window,
)
from rootwalk.graph.operations.arrays import (
    MAX_UNEQUAL_RATIO,
    NOT_KNOWN,
    Operations,
    align_operations,
    numbered,
    unequal_groups,
)
from rootwalk.graph.operations.case import NOISE_RATIO, build_operation_graph
from rootwalk.graph.operations.causes import find_costs
from rootwalk.graph.operations.graph import OperationGraph, build_operations
from rootwalk.graph.operations.rules import WITHOUT_SENSORS
from rootwalk.graph.operations.store import (
    WindowTimes,
    has_operations,
    read_operations,
    read_step_size,
    read_times,
)
from rootwalk.graph.operations.walk import walk_operations
from rootwalk.graph.operations.window import OperationWindow
from rootwalk.graph.reasons import WOULD_DECIDE
from rootwalk.graph.reasons.priors import Priors
from rootwalk.graph.score import ScoredFinding, score
from rootwalk.graph.verdict import (
    Counted,
    empty_verdict,
    settle,
    what_if,
    with_priors,
)

__all__ = ["OperationCase", "conclude_operations", "read_operation_case"]

# Ranks at which the walk begins: the last to finish, and others that agree or do not.
FINISHERS: Final = 4
# Steps of all ranks together that are read at once, the last ones, and their operations: these take 0.5 kB each.
MAX_RANK_STEPS: Final = 200_000
MAX_OPERATIONS: Final = 12_000_000
# Enough examples to open in a trace viewer.
MAX_EXEMPLARS: Final = 3


@dataclass(frozen=True, slots=True)
class OperationCase:
    """What was read of a job: its operations on their own clocks, and what is wrong with them."""

    key: JobKey
    operations: Operations
    times: WindowTimes
    quality: tuple[DataQuality, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was found out; without a window the operations cannot be replayed."""

    case: OperationCase
    graph: OperationGraph
    quality: tuple[DataQuality, ...]
    is_told: bool
    window: OperationWindow | None
    priors: Priors


def read_operation_case(
    connection: Any, job: str | None, steps: tuple[int, int] | None
) -> OperationCase | None:
    """Return the operations of a job; None if not all of them are recorded.

    Raises:
        ConfigError: If the job cannot be chosen.
    """
    key = job_choice.choose_job(connection, job)
    if key is None:
        return None
    last, ranks = job_choice.read_extent(connection, key)
    if not has_operations(connection, key, last):
        return None
    if steps is None:
        most = MAX_OPERATIONS // max(read_step_size(connection, key, last), 1)
        most = min(MAX_RANK_STEPS // max(ranks, 1), most)
        steps = job_choice.last_steps(connection, key, max(most, 1))
    operations, quality = read_operations(connection, key, steps)
    return OperationCase(key, operations, read_times(connection, key, steps), quality)


def conclude_operations(store_path: Path, case: OperationCase, priors: Priors) -> Verdict:
    """Return the verdict, and leave graph, evidence and findings in the store if it can be written."""
    answer = _analyse(case, priors)
    graph = DependencyGraph()
    evidence: tuple[Evidence, ...] = ()
    if answer.window is not None:
        graph, evidence = build_operation_graph(answer.window)
    return keep_verdict(store_path, case.key, graph, evidence, partial(_conclude, answer))


def _analyse(case: OperationCase, priors: Priors) -> _Answer:
    aligned, _, sigma_s, unaligned = align_operations(case.operations)
    graph = build_operations(aligned)
    unequal = unequal_groups(aligned)
    groups = numbered(aligned.group[aligned.group >= 0])[0].size
    quality = [*case.quality, *unaligned, *_holes(aligned)]
    if unequal:
        text = f"{unequal} of {groups} communications lack a member's record"
        quality.append(DataQuality(QualityCode.UNEQUAL_MEMBERS, text, unequal))
    if graph.circular:
        text = f"{graph.circular} operations wait for each other in a circle"
        quality.append(DataQuality(QualityCode.BAD_TIME, text, graph.circular))
    if not graph.step_numbers.size or graph.circular:
        return _Answer(case, graph, tuple(quality), False, None, priors)
    costs = find_costs(graph)
    if graph.found or costs.delays_s > 0.0:
        text = (
            f"{graph.found} operations start as another of their rank ends that no rule names; "
            f"other late starts cost {costs.delays_s:.3f} s a step and are left out"
        )
        quality.append(DataQuality(QualityCode.MISSING_EDGE, text, graph.found))
    worst = int(graph.step_numbers[int(np.argmax(graph.step_s))])
    window = OperationWindow(
        job=case.key.job,
        attempt=case.key.attempt,
        graph=graph,
        costs=costs,
        paths=walk_operations(graph, sigma_s, FINISHERS),
        exemplar=case.times.ids_by_step.get(worst, (None, None)),
    )
    is_told = unequal <= MAX_UNEQUAL_RATIO * groups and not unaligned
    return _Answer(case, graph, tuple(quality), is_told, window, priors)


def _holes(operations: Operations) -> tuple[DataQuality, ...]:
    """Return an item when some replicas lack a stage that others have."""
    replica, stage = operations.replica, operations.stage
    if not stage.size or min(int(replica.min()), int(stage.min())) == NOT_KNOWN:
        return ()
    places, replicas, stages = (
        numbered(*columns)[0] for columns in ((replica, stage), (replica,), (stage,))
    )
    expected = replicas.size * stages.size
    missing = expected - places.size
    if not missing:
        return ()
    text = f"no operation from {missing} of {expected} workers"
    return (DataQuality(QualityCode.RANK_MISSING, text, missing),)


def _conclude(answer: _Answer, graph: DependencyGraph, evidence: tuple[Evidence, ...]) -> Verdict:
    """Return the verdict, from the dependency graph as the store gives it back."""
    key, times, window = answer.case.key, answer.case.times, answer.window
    verdict = empty_verdict(key.job, key.attempt, key.world_size, answer.quality)
    if window is None:
        return verdict
    numbers, step_s = answer.graph.step_numbers, answer.graph.step_s
    worst = numbers[np.lexsort((numbers, -step_s))][:MAX_EXEMPLARS].tolist()
    traces = [times.ids_by_step.get(number, (None, None))[0] for number in worst]
    verdict = replace(
        verdict,
        window=Window(
            start_unix_ns=times.start_unix_ns,
            end_unix_ns=times.end_unix_ns,
            first_step=int(numbers[0]),
            last_step=int(numbers[-1]),
            exemplar_trace_ids=tuple(trace for trace in traces if trace is not None),
        ),
        step_s=round(float(step_s.mean()), 9),
        missing_sensors=tuple(
            MissingSensor(name, "NO_AGENT", (), WOULD_DECIDE[name]) for name in WITHOUT_SENSORS
        ),
    )
    costs = window.costs
    published = what_if(costs.simulated_s, costs.published_s)
    scored = score(graph, evidence, _context(answer, window))
    if not scored and window.slowdown_s < NOISE_RATIO * costs.ideal_s:
        return replace(verdict, what_if=published)
    counted = Counted(
        simulated_s=costs.simulated_s,
        ideal_s=costs.ideal_s,
        shares_s=tuple(costs.shares_s.mean(axis=0).tolist()),
        slack_s=_slack_s(window),
        what_if=published,
        is_told=answer.is_told,
    )
    verdict = with_priors(replace(verdict, kind="slow"), answer.priors)
    return settle(verdict, counted, scored, _victims(graph, scored))


def _context(answer: _Answer, window: OperationWindow) -> ScoreContext:
    key, numbers = answer.case.key, answer.graph.step_numbers
    return ScoreContext(
        job=key.job,
        attempt=key.attempt,
        world_size=key.world_size or np.unique(answer.graph.operations.rank).size,
        step_s=float(answer.graph.step_s.mean()),
        healthy_s=window.costs.ideal_s,
        step_count=numbers.size,
        onset_step=int(numbers[0]),
        onset_unix_ns=answer.case.times.start_unix_ns or 0,
        is_open=True,
        has_history=False,
        priors=answer.priors,
    )


def _slack_s(window: OperationWindow) -> float:
    """Return what a second path would still cost: excess on the path beyond what all causes together cost."""
    graph, costs = window.graph, window.costs
    total = 0.0
    above = graph.work_s - costs.parts.reference_s
    for paths in window.paths:
        path = paths[0]
        for node, seconds, is_gap in zip(path.nodes, path.seconds(), path.is_gap, strict=True):
            if not is_gap and graph.work_s[node] > 0.0:
                total += float(above[node]) * min(float(seconds / graph.work_s[node]), 1.0)
    return max(total / graph.step_numbers.size - window.slowdown_s, 0.0)


def _victims(graph: DependencyGraph, scored: tuple[ScoredFinding, ...]) -> Victims:
    """Return who waited for the culprit of the first finding."""
    if not scored:
        return Victims()
    node = scored[0].finding.subject.node
    for edge in graph.entering(node, EdgeKind.WAITS_FOR):
        ranks = victim_ranks(edge.payload.attributes)
        return Victims(ranks, len(ranks), edge.payload.seconds)
    return Victims()
