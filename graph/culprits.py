"""Write down who or what a late thread stood behind: the last edges of a chain, by what its cause is.

    thread -runnable-> cpu       process -contends_with-> thread        somebody ran in its place
    thread -throttled_by-> cgroup                                       nobody did: its limit
    thread -waits_for-> loader workers -running-> host                  they decode
    thread -waits_for-> loader workers -runnable-> host                 they were held up: as for a thread
    thread -running-> process | phase | host                            it did more itself
    thread -blocked-> file_system | service | output | thread           what it waited for
    thread -waits_for-> loader workers -blocked-> file_system           what they waited for
    thread -blocked-> host                                              nobody knows

Owns the form of these edges and the evidence that they cite; which causes are worth it is `accuse`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from rootwalk.graph.casefile import CaseFile, add_evidence, add_state_evidence, rounded
from rootwalk.graph.causes import IN_WORKERS, CauseKey
from rootwalk.graph.dependencies import node_id
from rootwalk.graph.input_evidence import (
    add_input_evidence,
    input_coverage,
    input_signal,
    is_input,
    load_node,
)
from rootwalk.graph.loaders import delays, worker_pids, worker_stalls
from rootwalk.graph.measures import Behind
from rootwalk.graph.model import Attributes, EdgeKind, EdgePayload, NodePayload
from rootwalk.graph.reasons import RULES, Reason, Signal
from rootwalk.graph.waited import WAIT_REASONS, find_waited

_RUNNABLE_REASONS: Final = (
    Reason.CPU_CONTENTION,
    Reason.MONITOR_SELF,
    Reason.THREAD_OVERSUBSCRIPTION,
    Reason.CPU_QUOTA,
)
_BY_RUNNING: Final = (Reason.GLOBAL_SLOW, Reason.COLD_START, Reason.WORK_IMBALANCE)
# What a cause that all ranks have alike is measured by, and the columns of `steps` that show it.
COMMON_SIGNAL: Final[dict[Reason, tuple[Signal, str]]] = {
    **dict.fromkeys(_BY_RUNNING, (Signal.RUNNING, "running_ns")),
    Reason.UNKNOWN_NET: (Signal.TRANSFER, "duration_ns"),
    Reason.PY_GC: (Signal.GC, "gc_ns"),
    Reason.DATALOADER_CPU: (Signal.LOADER_CPU, "loader_running_ns, blocked_loader_running_ns"),
    **{reason: (RULES[reason].magnitude, "wait_kinds, wait_times") for reason in WAIT_REASONS},
}
# The main thread's own idle time shows a limit that cost at least this part of it.
MIN_OWN_RATIO: Final = 0.5


@dataclass(frozen=True, slots=True)
class Culprit:
    """One cause with a rank: its number in the replay, who it is, and the node of the late main thread."""

    index: int
    key: CauseKey
    rank: int
    thread: str


def add_culprit(file: CaseFile, culprit: Culprit, excluding: tuple[str, ...]) -> None:
    """Add the edges from a late thread down to its cause.

    Args:
        file: The case file.
        culprit: The cause.
        excluding: Rows that say where the thread's time went otherwise.
    """
    key = culprit.key
    runnable = add_state_evidence(file, culprit.rank, Signal.RUNNABLE)
    if key.reason == Reason.DATALOADER_CPU and key.place == IN_WORKERS:
        _add_workers(file, culprit, runnable, excluding)
    elif key.reason in _RUNNABLE_REASONS and runnable is not None:
        held = culprit
        if not _add_held_workers(file, culprit, runnable, excluding):
            _add_runnable(file, culprit, runnable, excluding)
        else:
            held = replace(culprit, thread=_worker_node(file, culprit.rank))
        if key.reason == Reason.CPU_QUOTA:
            _add_limit(file, held)
        else:
            _add_process(file, held)
    elif is_input(file, key):
        _add_input(file, culprit)
    elif key.reason in WAIT_REASONS:
        _add_waited(file, culprit, excluding)
    else:
        _add_own_doing(file, culprit, excluding)


def _add_runnable(
    file: CaseFile, culprit: Culprit, runnable: str, excluding: tuple[str, ...]
) -> None:
    """Add thread -runnable-> the CPU that it stood in front of."""
    thread = file.graph.node(culprit.thread)
    number = thread.attributes.get("cpu") if thread is not None else None
    host = file.host(culprit.rank)
    place = node_id("host", host) if number is None else node_id("cpu", host, str(number))
    if number is not None:
        file.graph.add_node(place, NodePayload("cpu", f"CPU {number}", {}))
    seconds = rounded(file.excess(runnable))
    payload = EdgePayload(EdgeKind.RUNNABLE, seconds, (runnable, *excluding), {})
    file.graph.add_edge(culprit.thread, place, payload)


def _add_held_workers(
    file: CaseFile, culprit: Culprit, runnable: str, excluding: tuple[str, ...]
) -> bool:
    """Add the loader workers as what was held up, where they explain the cause and the thread's own queueing does not.

    Returns:
        Whether it is the workers.
    """
    data, rank = file.data, culprit.rank
    kinds = {Reason.CPU_QUOTA: Behind.IDLE, Reason.THREAD_OVERSUBSCRIPTION: Behind.OWN}
    window = file.analysis.window.step_numbers
    history = {file.clock.numbers[i] for i in file.question.history}
    by_kind = delays(worker_stalls(data), history, set(window)).get(rank, {})
    kind = kinds.get(Reason(culprit.key.reason), Behind.FOREIGN)
    delay_s = by_kind.get(kind, 0.0) / len(window)
    if delay_s <= file.excess(runnable):
        return False
    cited = add_evidence(
        file,
        f"{Signal.LOADER_RUNNABLE}/rank{rank}/{kind}",
        Signal.LOADER_RUNNABLE,
        delay_s,
        history=0.0,
        query=file.query("step, role, duration_ns, aggressor_kind, aggressor_pid", "stalls", rank),
    )
    workers = _worker_node(file, rank)
    seconds = rounded(file.analysis.cause_s[culprit.index])
    waited = tuple(
        item
        for item in (
            add_state_evidence(file, rank, signal)
            for signal in (Signal.LOADER_WAIT, Signal.BLOCKED)
        )
        if item is not None
    )
    others = tuple(item for item in excluding if item not in waited)
    payload = EdgePayload(EdgeKind.WAITS_FOR, seconds, (*waited, *others), {})
    file.graph.add_edge(culprit.thread, workers, payload)
    host = node_id("host", file.host(rank))
    file.graph.add_edge(
        workers, host, EdgePayload(EdgeKind.RUNNABLE, rounded(delay_s), (cited,), {})
    )
    return True


def _add_process(file: CaseFile, culprit: Culprit) -> None:
    """Add the process that ran in the thread's place."""
    graph, key, rank = file.graph, culprit.key, culprit.rank
    host = file.host(rank)
    cited = _stall_evidence(file, culprit, Signal.AGGRESSOR)
    pid: int | None = key.pid
    if key.reason == Reason.THREAD_OVERSUBSCRIPTION:
        row = file.data.host_of(rank)
        pid = row.pid if row is not None else None
    name, cgroup, part = "other processes", None, f"rank{rank}-others"
    peer = None
    if pid is not None:
        name, cgroup = file.names.names.get(pid, f"rank {rank}"), file.names.cgroups.get(pid)
        found, part = file.rank_of(host, pid), str(pid)
        if found not in (None, rank):
            name, peer = f"rank {found} of this job", found
    node = node_id("process", host, part)
    graph.add_node(node, NodePayload("process", name, {"pid": pid, "cgroup": cgroup, "peer": peer}))
    graph.add_edge(node, node_id("host", host), EdgePayload(EdgeKind.RUNS_ON, None, (), {}))
    if cgroup is not None:
        place = node_id("cgroup", host, cgroup)
        graph.add_node(place, NodePayload("cgroup", cgroup, {}))
        graph.add_edge(node, place, EdgePayload(EdgeKind.MEMBER_OF, None, (), {}))
    subject = culprit.thread if key.reason == Reason.THREAD_OVERSUBSCRIPTION else node
    payload = end_of_chain(file, culprit.index, key, EdgeKind.CONTENDS_WITH, (cited,), subject)
    graph.add_edge(node, culprit.thread, payload)


def _stall_evidence(file: CaseFile, culprit: Culprit, signal: Signal) -> str:
    key = culprit.key
    return add_evidence(
        file,
        f"{Signal.AGGRESSOR}/rank{culprit.rank}/{key.reason}/{key.pid}",
        signal,
        file.analysis.cause_s[culprit.index],
        history=0.0,
        query=file.query("step, duration_ns, aggressor_pid, aggressors", "stalls", culprit.rank),
    )


def _add_limit(file: CaseFile, culprit: Culprit) -> None:
    """Add the control group whose limit held the thread back, with the group's own count where it was read."""
    rank = culprit.rank
    idle, foreign = (add_state_evidence(file, rank, s) for s in (Signal.IDLE, Signal.FOREIGN))
    throttled = add_state_evidence(file, rank, Signal.THROTTLED)
    least_s = MIN_OWN_RATIO * file.analysis.cause_s[culprit.index]
    cited = [throttled] if throttled is not None else []
    idle_s, foreign_s = (file.excess(row) if row is not None else 0.0 for row in (idle, foreign))
    is_shown = idle_s >= least_s
    # Somebody ran there meanwhile: the group's own count is all that says how much it was.
    is_hidden = not is_shown and idle_s + foreign_s >= least_s
    if idle is not None and is_shown:
        cited = [idle, *cited]
    elif not (is_hidden and cited):  # it was another thread of the rank, or a loader worker
        cited = [_stall_evidence(file, culprit, Signal.IDLE), *cited]
    limit = file.data.cpu_limit_by_rank.get(rank)
    label = f"control group of rank {rank}"
    if limit is not None:
        label += f", limited to {limit:.2f} CPU"
        cited.append(_limit_evidence(file, rank, limit))
    host = file.host(rank)
    node = node_id("cgroup", host, f"rank{rank}")
    file.graph.add_node(node, NodePayload("cgroup", label, {"cpu_limit": limit}))
    signal = Signal.THROTTLED if idle is None or is_hidden else None
    kind, ids = EdgeKind.THROTTLED_BY, tuple(cited)
    payload = end_of_chain(file, culprit.index, culprit.key, kind, ids, node, magnitude=signal)
    file.graph.add_edge(culprit.thread, node, payload)


def _limit_evidence(file: CaseFile, rank: int, limit: float) -> str:
    job = file.data.job.replace("'", "''")
    where = f"name = '{Signal.CPU_LIMIT}' AND job = '{job}' AND rank = {rank}"
    return add_evidence(
        file,
        f"{Signal.CPU_LIMIT}/rank{rank}",
        Signal.CPU_LIMIT,
        limit,
        unit="{cpu}",
        query=" ".join(("SELECT unix_ns, value FROM metrics WHERE", where, "ORDER BY unix_ns")),
    )


def _add_workers(
    file: CaseFile, culprit: Culprit, runnable: str | None, excluding: tuple[str, ...]
) -> None:
    """Add the rank's loader workers: the thread waits for them, or stands behind them, whichever is more."""
    graph, rank = file.graph, culprit.rank
    workers = _worker_node(file, rank)
    growth = add_state_evidence(file, rank, Signal.LOADER_CPU)
    cited = (growth,) if growth is not None else ()
    waited = add_state_evidence(file, rank, Signal.LOADER_WAIT)
    behind = add_state_evidence(file, rank, Signal.OWN)
    is_behind = behind is not None and (waited is None or file.excess(behind) > file.excess(waited))
    kind = EdgeKind.CONTENDS_WITH if is_behind else EdgeKind.RUNNING
    end = end_of_chain(file, culprit.index, culprit.key, kind, cited, workers)
    if is_behind and runnable is not None:
        _add_runnable(file, culprit, runnable, excluding)
        graph.add_edge(workers, culprit.thread, end)
        return
    own = (waited,) if waited is not None else ()
    seconds = rounded(file.excess(waited)) if waited is not None else None
    graph.add_edge(
        culprit.thread, workers, EdgePayload(EdgeKind.WAITS_FOR, seconds, (*own, *excluding), {})
    )
    graph.add_edge(workers, node_id("host", file.host(rank)), end)


def _add_waited(file: CaseFile, culprit: Culprit, excluding: tuple[str, ...]) -> None:
    """Add what a thread waited for, or what its loader workers did."""
    graph, key, rank = file.graph, culprit.key, culprit.rank
    reason, host = Reason(key.reason), file.host(rank)
    in_workers = key.place == IN_WORKERS
    steps = file.analysis.window.step_numbers
    waited = find_waited(file.data, rank, reason, key.place, steps)
    target = node_id(waited.kind, host, waited.part)
    graph.add_node(target, NodePayload(waited.kind, waited.label, {"rank": rank}))
    graph.add_edge(target, node_id("host", host), EdgePayload(EdgeKind.RUNS_ON, None, (), {}))
    signal = Signal.LOADER_FILES if in_workers else RULES[reason].magnitude
    cited = add_state_evidence(file, rank, signal)
    own = (cited,) if cited is not None else ()
    others = tuple(item for item in excluding if item != cited)
    source = culprit.thread
    if in_workers:
        source = _worker_node(file, rank)
        seconds = rounded(file.analysis.cause_s[culprit.index])
        payload = EdgePayload(EdgeKind.WAITS_FOR, seconds, (*own, *others), {})
        graph.add_edge(culprit.thread, source, payload)
        others = ()
    end = end_of_chain(
        file, culprit.index, key, EdgeKind.BLOCKED, (*own, *others), target, magnitude=signal
    )
    graph.add_edge(source, target, end)


def _worker_node(file: CaseFile, rank: int) -> str:
    """Add the node of a rank's loader workers: the process where there is one, else all of them; return its id."""
    pids = worker_pids(file.data, rank)
    host = file.host(rank)
    node = node_id("process", host, pids[0] if len(pids) == 1 else f"rank{rank}-loaders")
    label = f"loader worker of rank {rank}" if len(pids) == 1 else f"loader workers of rank {rank}"
    listed = ",".join(str(pid) for pid in pids)
    file.graph.add_node(node, NodePayload("process", label, {"pids": listed}))
    file.graph.add_edge(node, node_id("host", host), EdgePayload(EdgeKind.RUNS_ON, None, (), {}))
    return node


def rank_process(file: CaseFile, rank: int, reason: str) -> str:
    """Add the node of a rank that did more itself, by what it did; return its id."""
    host = file.host(rank)
    if reason in WAIT_REASONS:
        steps = file.analysis.window.step_numbers
        waited = find_waited(file.data, rank, Reason(reason), "", steps)
        node = node_id(waited.kind, host, waited.part)
        file.graph.add_node(node, NodePayload(waited.kind, waited.label, {"rank": rank}))
        return node
    if reason in (Reason.DATALOADER_CPU, Reason.UNKNOWN_HOST):
        return load_node(file, rank, "" if reason == Reason.DATALOADER_CPU else "wait")
    row = file.data.host_of(rank)
    pid = row.pid if row is not None and row.pid is not None else f"rank{rank}"
    # Two causes that all ranks have in common are two edges: each needs a node of its own.
    if reason == Reason.PY_GC:
        node, label = node_id("process", host, pid, "gc"), "Python's garbage collector"
    else:
        node, label = node_id("process", host, pid, reason), f"rank {rank}"
    file.graph.add_node(node, NodePayload("process", label, {}))
    return node


def _add_input(file: CaseFile, culprit: Culprit) -> None:
    """Add the data loading for which the device waited, as a profile shows it."""
    kind = EdgeKind.RUNNING if culprit.key.reason == Reason.DATALOADER_CPU else EdgeKind.BLOCKED
    payload = end_of_chain(
        file,
        culprit.index,
        culprit.key,
        kind,
        add_input_evidence(file, culprit.rank),
        culprit.thread,
        magnitude=input_signal(file),
        coverage=input_coverage(file, culprit.key),
    )
    file.graph.add_edge(culprit.thread, load_node(file, culprit.rank), payload)


def _add_own_doing(file: CaseFile, culprit: Culprit, excluding: tuple[str, ...]) -> None:
    """Add what the thread did itself, or the host where nobody knows what kept it."""
    key, rank = culprit.key, culprit.rank
    host = node_id("host", file.host(rank))
    kind, signal, target = {
        Reason.WORK_IMBALANCE: (EdgeKind.RUNNING, Signal.RUNNING, host),
        Reason.PY_GC: (EdgeKind.RUNNING, Signal.GC, ""),
        Reason.DATALOADER_CPU: (EdgeKind.RUNNING, Signal.RUNNING, ""),
    }.get(Reason(key.reason), (EdgeKind.BLOCKED, Signal.HOST, host))
    target = target or rank_process(file, rank, key.reason)
    cited = None
    if key.reason in (Reason.PY_GC, Reason.DATALOADER_CPU):
        cited = add_state_evidence(file, rank, signal)
    if cited is None:
        columns = "step, phase, duration_ns, running_ns, blocked_ns"
        cited = add_evidence(
            file,
            f"{signal}/lost{rank}",
            signal,
            file.analysis.cause_s[culprit.index],
            history=0.0,
            query=file.query(columns, "phases", rank),
        )
    others = tuple(item for item in excluding if item != cited)
    payload = end_of_chain(
        file, culprit.index, key, kind, (cited, *others), culprit.thread, magnitude=signal
    )
    file.graph.add_edge(culprit.thread, target, payload)


def end_of_chain(
    file: CaseFile,
    index: int,
    key: CauseKey,
    kind: EdgeKind,
    evidence_ids: tuple[str, ...],
    subject: str,
    *,
    parallel: int = 1,
    magnitude: Signal | None = None,
    coverage: float | None = None,
) -> EdgePayload:
    """Return the last edge of a chain: it carries the reason and what its replay gave.

    Args:
        file: The case file.
        index: Number of the cause in the replay.
        key: The cause.
        kind: Kind of the edge.
        evidence_ids: Rows that the edge rests on.
        subject: Node that is to blame.
        parallel: How many such edges the cause has.
        magnitude: Signal that explains the seconds, where it is not the reason's own.
        coverage: How much of what decides the reason was seen, where that is not for the sensors to say.
    """
    counterfactual = file.analysis.counterfactual
    attributes: Attributes = {
        "reason": str(key.reason),
        "rank": key.rank,
        "place": key.place or None,
        "subject": subject,
        "cause": index,
        "share_s": rounded(counterfactual.share[index]),
        "remove_s": rounded(counterfactual.remove[index]),
        "add_s": rounded(counterfactual.add[index]),
        "path_s": rounded(file.analysis.cause_path_s[index]),
        "parallel": parallel,
        "magnitude": str(magnitude) if magnitude is not None else None,
        "coverage": coverage,
    }
    return EdgePayload(kind, rounded(file.analysis.cause_s[index]), evidence_ids, attributes)
