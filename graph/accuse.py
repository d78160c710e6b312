"""Write down what was measured as a dependency graph with evidence, for the store.

Owns the translation from arrays to nodes, edges and evidence rows. It accuses nobody: every cause that costs enough
gets its chain, and score decides from the stored graph which of them stand.
"""

from __future__ import annotations

import numpy as np

from rootwalk.graph.analysis import Analysis, Question, StepClock
from rootwalk.graph.casefile import (
    STATES_OF_SIGNAL,
    CaseFile,
    add_evidence,
    add_state_evidence,
    add_step_evidence,
    open_case,
    rounded,
    window_times_s,
)
from rootwalk.graph.columns import JobData
from rootwalk.graph.dependencies import DependencyGraph, node_id
from rootwalk.graph.descend import CauseKey
from rootwalk.graph.model import Attributes, EdgeKind, EdgePayload, Evidence, NodePayload
from rootwalk.graph.reasons import Reason, Signal

# Causes below this part of the slowdown are not worth a chain; they count as unexplained.
MIN_LISTED_SHARE = 0.10

_RUNNABLE_REASONS = (
    Reason.CPU_CONTENTION,
    Reason.MONITOR_SELF,
    Reason.THREAD_OVERSUBSCRIPTION,
    Reason.CPU_QUOTA,
)


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
            _add_cause(file, index, key, step_id)
    return file.graph, tuple(file.evidence[item] for item in sorted(file.evidence))


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
            "sensor": _sensor(data, rank),
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


def _sensor(data: JobData, rank: int) -> str | None:
    found = {data.steps.sensor[row] for row in np.flatnonzero(data.steps.rank == rank).tolist()} - {
        None
    }
    return "core" if "core" in found else next(iter(sorted(str(s) for s in found)), None)


def _add_cause(file: CaseFile, index: int, key: CauseKey, step_id: str) -> None:
    """Add the chain of one cause: symptom, wait, state of the thread, and who or what."""
    if key.rank is None:
        _add_common_cause(file, index, key, step_id)
        return
    thread = _main_thread(file, key.rank)
    _add_wait(file, key.rank, thread, step_id)
    signals = [s for s in STATES_OF_SIGNAL if s is not Signal.RUNNABLE]
    excluding = tuple(
        e for e in (add_state_evidence(file, key.rank, s) for s in signals) if e is not None
    )
    runnable = add_state_evidence(file, key.rank, Signal.RUNNABLE)
    seconds = file.analysis.cause_s[index]
    host = node_id("host", file.host(key.rank))
    if key.reason in _RUNNABLE_REASONS and runnable is not None:
        cpu = file.graph.node(thread)
        number = cpu.attributes.get("cpu") if cpu is not None else None
        place = host if number is None else node_id("cpu", file.host(key.rank), str(number))
        if number is not None:
            file.graph.add_node(place, NodePayload("cpu", f"CPU {number}", {}))
        excess = (file.evidence[runnable].value or 0.0) - (file.evidence[runnable].history or 0.0)
        payload = EdgePayload(EdgeKind.RUNNABLE, rounded(excess), (runnable, *excluding), {})
        file.graph.add_edge(thread, place, payload)
        _add_runnable_end(file, index, key, thread, seconds)
        return
    kind = EdgeKind.RUNNING if key.reason == Reason.WORK_IMBALANCE else EdgeKind.BLOCKED
    signal = Signal.RUNNING if kind is EdgeKind.RUNNING else Signal.HOST
    lost = add_evidence(
        file, f"{signal}/lost{key.rank}", signal, seconds, history=0.0, query=_lost_query(file, key)
    )
    file.graph.add_edge(thread, host, _end(file, index, key, kind, (lost, *excluding), thread))


def _lost_query(file: CaseFile, key: CauseKey) -> str:
    return file.query("step, phase, duration_ns, running_ns, blocked_ns", "phases", key.rank)


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


def _add_runnable_end(
    file: CaseFile, index: int, key: CauseKey, thread: str, seconds: float
) -> None:
    """Add who ran in the thread's place, or what held its CPU back."""
    graph, rank = file.graph, key.rank if key.rank is not None else -1
    host = file.host(rank)
    aggressor = add_evidence(
        file,
        f"{Signal.AGGRESSOR}/rank{rank}/{key.reason}/{key.pid}",
        Signal.AGGRESSOR if key.reason != Reason.CPU_QUOTA else Signal.IDLE,
        seconds,
        history=0.0,
        query=file.query("step, duration_ns, aggressor_pid, aggressors", "stalls", rank),
    )
    if key.reason == Reason.CPU_QUOTA:
        node = node_id("cgroup", host, f"rank{rank}")
        graph.add_node(node, NodePayload("cgroup", f"control group of rank {rank}", {}))
        graph.add_edge(
            thread, node, _end(file, index, key, EdgeKind.THROTTLED_BY, (aggressor,), node)
        )
        return
    pid: int | None = key.pid
    if key.reason == Reason.THREAD_OVERSUBSCRIPTION:
        row = file.data.host_of(rank)
        pid = row.pid if row is not None else None
    name = file.names.names.get(pid, f"rank {rank}") if pid is not None else "other processes"
    cgroup = file.names.cgroups.get(pid) if pid is not None else None
    node = node_id("process", host, pid if pid is not None else f"rank{rank}-others")
    graph.add_node(node, NodePayload("process", name, {"pid": pid, "cgroup": cgroup}))
    graph.add_edge(node, node_id("host", host), EdgePayload(EdgeKind.RUNS_ON, None, (), {}))
    if cgroup is not None:
        place = node_id("cgroup", host, cgroup)
        graph.add_node(place, NodePayload("cgroup", cgroup, {}))
        graph.add_edge(node, place, EdgePayload(EdgeKind.MEMBER_OF, None, (), {}))
    subject = thread if key.reason == Reason.THREAD_OVERSUBSCRIPTION else node
    graph.add_edge(
        node, thread, _end(file, index, key, EdgeKind.CONTENDS_WITH, (aggressor,), subject)
    )


def _add_common_cause(file: CaseFile, index: int, key: CauseKey, step_id: str) -> None:
    """Add a cause without a culprit rank: all hosts alike, or the transfers of a communicator."""
    seconds = file.analysis.cause_s[index] / (
        1 if key.reason == Reason.UNKNOWN_NET else len(file.series.ranks)
    )
    if key.reason == Reason.UNKNOWN_NET:
        names = sorted({group.communicator for group in file.analysis.window.groups})
        lost = add_evidence(file, Signal.TRANSFER, Signal.TRANSFER, seconds, history=0.0)
        target = node_id("communicator", names[0])
        file.graph.add_node(target, NodePayload("communicator", names[0], {}))
        payload = _end(file, index, key, EdgeKind.SLOWED_BY, (step_id, lost), target)
        file.graph.add_edge(file.job_node, target, payload)
        return
    lost = add_evidence(
        file,
        "common",
        Signal.RUNNING,
        seconds,
        history=0.0,
        query=file.query("step, rank, running_ns", "steps", None, "ORDER BY step, rank"),
    )
    hosts = sorted({node_id("host", file.host(rank)) for rank in file.series.ranks})
    for host in hosts:
        payload = _end(
            file, index, key, EdgeKind.SLOWED_BY, (step_id, lost), file.job_node, len(hosts)
        )
        file.graph.add_edge(file.job_node, host, payload)


def _end(
    file: CaseFile,
    index: int,
    key: CauseKey,
    kind: EdgeKind,
    evidence_ids: tuple[str, ...],
    subject: str,
    parallel: int = 1,
) -> EdgePayload:
    """Return the last edge of a chain: it carries the reason and what its replay gave."""
    analysis = file.analysis
    counterfactual = analysis.counterfactual
    attributes: Attributes = {
        "reason": str(key.reason),
        "rank": key.rank,
        "subject": subject,
        "cause": index,
        "share_s": rounded(counterfactual.share[index]),
        "remove_s": rounded(counterfactual.remove[index]),
        "add_s": rounded(counterfactual.add[index]),
        "path_s": rounded(analysis.cause_path_s[index]),
        "parallel": parallel,
    }
    return EdgePayload(kind, rounded(analysis.cause_s[index]), evidence_ids, attributes)
