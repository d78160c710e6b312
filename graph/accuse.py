"""Write down what was measured as a dependency graph with evidence, for the store.

Owns the translation from arrays to nodes, edges and evidence rows. It accuses nobody: every cause that costs enough
gets its chain, and score decides from the stored graph which of them stand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rootwalk.graph.analysis import Analysis, Question, StepClock
from rootwalk.graph.casefile import (
    CaseFile,
    add_evidence,
    add_state_evidence,
    add_step_evidence,
    open_case,
    rounded,
    window_times_s,
)
from rootwalk.graph.causes import CauseKey
from rootwalk.graph.columns import FloatArray, JobData
from rootwalk.graph.cpu_speed import common_slowdown, times_of_all
from rootwalk.graph.crowd_chain import add_crowd
from rootwalk.graph.culprits import COMMON_SIGNAL, Culprit, add_culprit, end_of_chain, rank_process
from rootwalk.graph.dependencies import DependencyGraph, node_id
from rootwalk.graph.in_turn import is_in_turn
from rootwalk.graph.input_evidence import (
    add_input_evidence,
    input_coverage,
    input_signal,
    is_input,
)
from rootwalk.graph.model import Attributes, EdgeKind, EdgePayload, Evidence, NodePayload
from rootwalk.graph.reasons import STATE_SIGNALS, Reason, Signal

# Causes below this part of the slowdown are not worth a chain; they count as unexplained.
MIN_LISTED_SHARE = 0.10
# What nobody does in particular.
_ALIKE = (Reason.GLOBAL_SLOW, Reason.COLD_START)


def build_dependencies(
    data: JobData, clock: StepClock, question: Question, analysis: Analysis
) -> tuple[DependencyGraph, tuple[Evidence, ...]]:
    """Return the dependency graph of a window and the evidence that its edges rest on.

    Args:
        data: Telemetry on the aligned clock.
        clock: The job's step clock.
        question: Window and history as positions on the clock.
        analysis: What the window's causes cost.
    """
    file = open_case(data, clock, question, analysis)
    _add_places(file)
    step_id = add_step_evidence(file)
    healthy = float(np.median(clock.step_s[list(question.history)])) if question.history else None
    ideal_s = analysis.counterfactual.ideal_s
    slowdown_s = float(clock.step_s[question.start : question.stop].mean()) - (healthy or ideal_s)
    for index, key in enumerate(analysis.causes):
        if analysis.counterfactual.share[index] >= MIN_LISTED_SHARE * slowdown_s > 0.0:
            _add_cause(file, index, _named(key, question), step_id)
    return file.graph, tuple(file.evidence[item] for item in sorted(file.evidence))


def _named(key: CauseKey, question: Question) -> CauseKey:
    """Return a cause by its name in these steps: what all ranks do longer in the first of them is warming up."""
    is_cold = key.reason == Reason.GLOBAL_SLOW and question.is_start
    return replace(key, reason=Reason.COLD_START) if is_cold else key


def _add_places(file: CaseFile) -> None:
    """Add job, ranks, hosts, main threads and communicators, and what belongs to what."""
    data, graph = file.data, file.graph
    graph.add_node(file.job_node, NodePayload("job", data.job, {"attempt": data.attempt}))
    for rank in file.series.ranks:
        host = file.host(rank)
        rank_node, host_node = node_id("rank", rank), node_id("host", host)
        graph.add_node(rank_node, NodePayload("rank", f"rank {rank}", {"rank": rank}))
        graph.add_node(host_node, NodePayload("host", host, {}))
        thread = _main_thread(file, rank)
        attributes: Attributes = {
            "rank": rank,
            "host": host,
            "cpu": _main_cpu(data, rank),
            "sensor": file.sensor(rank),
            "readers": ",".join(sorted(file.readers(rank))),
            "is_cgroup_seen": bool(
                (~np.isnan(data.steps.throttled_s[data.steps.rank == rank])).any()
            ),
        }
        graph.add_node(thread, NodePayload("thread", f"main thread of rank {rank}", attributes))
        for source, target, kind in (
            (rank_node, host_node, EdgeKind.RUNS_ON),
            (thread, rank_node, EdgeKind.MEMBER_OF),
            (rank_node, file.job_node, EdgeKind.MEMBER_OF),
        ):
            graph.add_edge(source, target, EdgePayload(kind, None, (), {}))


def _main_thread(file: CaseFile, rank: int) -> str:
    thread_id = next(
        (s.thread_id for s in file.data.stalls if s.rank == rank and s.role == "main"), None
    )
    row = file.data.host_of(rank)
    if thread_id is None and row is not None:
        thread_id = row.pid
    return node_id("thread", file.host(rank), thread_id if thread_id is not None else f"rank{rank}")


def _main_cpu(data: JobData, rank: int) -> int | None:
    """Return the CPU on which the rank's main thread stood runnable most often."""
    seen: dict[int, int] = {}
    for stall in data.stalls:
        if (
            stall.rank == rank
            and stall.role == "main"
            and stall.state == "runnable"
            and stall.cpu is not None
        ):
            seen[stall.cpu] = seen.get(stall.cpu, 0) + 1
    return max(sorted(seen), key=lambda cpu: seen[cpu]) if seen else None


def _add_cause(file: CaseFile, index: int, key: CauseKey, step_id: str) -> None:
    """Add the chain of one cause: symptom, wait, state of the thread, and who or what."""
    crowd = file.analysis.amounts.crowds.get(key)
    if crowd is not None:
        add_crowd(file, index, crowd, step_id)
        return
    if key.rank is None:
        _add_common_cause(file, index, key, step_id)
        return
    thread = _main_thread(file, key.rank)
    _add_wait(file, key.rank, thread, step_id)
    culprit = Culprit(index, key, key.rank, thread)
    excluding = tuple(
        item
        for item in (add_state_evidence(file, key.rank, signal) for signal in STATE_SIGNALS)
        if item is not None
    )
    add_culprit(file, culprit, excluding)


def _add_wait(file: CaseFile, rank: int, thread: str, step_id: str) -> None:
    """Add symptom -> collective -> late thread, or symptom -> thread when nobody waited for it."""
    analysis, graph = file.analysis, file.graph
    heaviest = analysis.waits.heaviest.get(rank)
    slowdown = EdgePayload(EdgeKind.SLOWED_BY, rounded(_slowdown_s(file)), (step_id,), {})
    if heaviest is None:
        graph.add_edge(file.job_node, thread, slowdown)
        return
    group = analysis.window.groups[heaviest[0]]
    row = int(analysis.window.row[group.members[0]])
    operation = file.data.collectives.operation[row]
    collective = node_id("collective", group.label)
    label = f"{operation} {group.communicator} #{group.label.rsplit('/', 1)[-1]}"
    graph.add_node(collective, NodePayload("collective", label, {}))
    communicator = node_id("communicator", group.communicator)
    graph.add_node(communicator, NodePayload("communicator", group.communicator, {}))
    graph.add_edge(collective, communicator, EdgePayload(EdgeKind.MEMBER_OF, None, (), {}))
    graph.add_edge(file.job_node, collective, slowdown)
    victims = {v: float(s.mean()) for (v, c), s in analysis.waits.series.items() if c == rank}
    before = analysis.history_waits
    usual = [
        float(np.median(s)) for (_, c), s in (before.series.items() if before else ()) if c == rank
    ]
    # Ranks that hardly waited are not victims; a tenth of the longest wait separates them.
    listed = sorted(v for v, s in victims.items() if s >= 0.1 * max(victims.values()))
    waited_s = float(np.mean([victims[v] for v in listed]))
    wait_id = add_evidence(
        file,
        f"{Signal.WAIT}/rank{rank}",
        Signal.WAIT,
        waited_s,
        history=max(usual, default=0.0) if before else None,
        query=file.query(
            "step, rank, sequence, duration_ns", "collectives", None, "ORDER BY sequence, rank"
        ),
    )
    attributes: Attributes = {
        "victims": ",".join(map(str, listed)),
        "certainty": rounded(analysis.path.certainty(rank)),
    }
    payload = EdgePayload(EdgeKind.WAITS_FOR, rounded(waited_s), (wait_id,), attributes)
    graph.add_edge(collective, thread, payload)


def _slowdown_s(file: CaseFile) -> float:
    history = file.clock.step_s[list(file.question.history)]
    usual = float(np.median(history)) if history.size else file.analysis.counterfactual.ideal_s
    return float(window_times_s(file).mean()) - usual


def _rows_of_all(file: CaseFile, signal: Signal) -> list[Evidence | None]:
    """Return what each rank's steps say of a signal; nobody cites these rows."""
    known = dict(file.evidence)
    found = [add_state_evidence(file, rank, signal) for rank in file.series.ranks]
    rows = [None if item is None else file.evidence[item] for item in found]
    file.evidence = known
    return rows


def _grown_s(row: Evidence | None) -> float:
    return 0.0 if row is None else (row.value or 0.0) - (row.history or 0.0)


def _common_signal(file: CaseFile, reason: Reason) -> tuple[Signal, str]:
    """Return what shows what all ranks have in common, and its columns: where all are slower, what grew most."""
    if reason in _ALIKE:
        running, queue = (
            sum(map(_grown_s, _rows_of_all(file, one))) for one in (Signal.RUNNING, Signal.RUNNABLE)
        )
        if queue > running:
            return Signal.RUNNABLE, "runnable_ns"
    return COMMON_SIGNAL[reason]


def _by_rank_and_step(file: CaseFile, key: CauseKey) -> FloatArray:
    """Return the seconds of a cause, (ranks, steps)."""
    window = file.analysis.window
    ranks, row = np.unique(window.rank, return_inverse=True)
    result = np.zeros((ranks.size, len(window.step_numbers)))
    np.add.at(result, (row, window.step), file.analysis.amounts.column(key, window.rank.size))
    return result


def _common_evidence(
    file: CaseFile, reason: Reason, seconds: float, *, in_turn: bool
) -> tuple[str, Signal]:
    """Add what all ranks have in common: their mean beside that of healthy steps, else the seconds alone."""
    signal, columns = _common_signal(file, reason)
    if reason is Reason.UNKNOWN_NET:
        return add_evidence(file, signal, signal, seconds, history=0.0), signal
    rows = _rows_of_all(file, signal)
    is_told = not in_turn and reason not in _ALIKE and min(map(_grown_s, rows)) > 0.0
    told = [row for row in rows if row is not None] if is_told else []
    cited = add_evidence(
        file,
        f"{signal}/common",
        signal,
        float(np.mean([row.value or 0.0 for row in told])) if told else seconds,
        history=float(np.mean([row.history or 0.0 for row in told])) if told else 0.0,
        query=file.query(f"step, rank, {columns}", "steps", None, "ORDER BY step, rank"),
    )
    return cited, signal


def _speed_evidence(file: CaseFile, reason: Reason) -> tuple[str, ...]:
    """Add what the same little work took on the ranks' CPUs, in the mean, where that is why all ranks are slower."""
    ranks, window = file.series.ranks, file.analysis.window.step_numbers
    history = [file.clock.numbers[i] for i in file.question.history]
    told = times_of_all(file.data.probes, ranks, history, window)
    if reason not in _ALIKE or common_slowdown(told) <= 0.0:
        return ()
    cited = add_evidence(
        file,
        f"{Signal.CPU_PROBE}/common",
        Signal.CPU_PROBE,
        float(np.mean([times.now_s for times in told])),
        history=float(np.mean([times.before_s for times in told])),
        query=file.query(
            f"step, rank, attributes ->> '$.\"{Signal.CPU_PROBE}\"'",
            "spans",
            None,
            "AND name = 'training.rank_step' ORDER BY step, rank",
        ),
    )
    return (cited,)


def _add_common_cause(file: CaseFile, index: int, key: CauseKey, step_id: str) -> None:
    """Add a cause without a culprit rank: what all hosts or all ranks have alike, or a communicator's transfers.

    What the ranks do in turn is lost once a step, what they do alike as often as there are ranks.
    """
    is_transfer = key.reason == Reason.UNKNOWN_NET
    is_alike = is_transfer or key.reason in _ALIKE
    in_turn = not is_alike and is_in_turn(_by_rank_and_step(file, key))
    seconds = file.analysis.cause_s[index] / (
        1 if is_transfer or in_turn else len(file.series.ranks)
    )
    of_input = is_input(file, key)
    if of_input:
        cited, signal = (step_id, *add_input_evidence(file, None)), input_signal(file)
    else:
        evidence_id, signal = _common_evidence(file, Reason(key.reason), seconds, in_turn=in_turn)
        cited = (step_id, evidence_id, *_speed_evidence(file, Reason(key.reason)))
    if is_transfer:
        names = sorted({group.communicator for group in file.analysis.window.groups})
        target = node_id("communicator", names[0])
        file.graph.add_node(target, NodePayload("communicator", names[0], {}))
        targets, subject = [target], target
    elif key.reason in _ALIKE:
        targets = sorted({node_id("host", file.host(rank)) for rank in file.series.ranks})
        subject = file.job_node
    else:
        targets = sorted({rank_process(file, rank, key.reason) for rank in file.series.ranks})
        subject = file.job_node
    for target in targets:
        payload = end_of_chain(
            file,
            index,
            key,
            EdgeKind.SLOWED_BY,
            cited,
            subject,
            parallel=len(targets),
            magnitude=signal,
            coverage=input_coverage(file, key) if of_input else None,
        )
        if in_turn:
            payload.attributes["pattern"] = "rotating"
        file.graph.add_edge(file.job_node, target, payload)
