"""Write down what the operations of a window cost as a dependency graph with evidence, for the store.

    job -slowed_by-> collective -waits_for-> rank -running-> operation      a worker
    job -slowed_by-> collective -waits_for-> rank -blocked-> host           operations that start late
    job -slowed_by-> stage | job | communicator                             nobody's in particular

Owns the form of the chains and what stands out enough for one. Who is accused is decided by `score`, from the store.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rootwalk.graph.casefile import rounded
from rootwalk.graph.dependencies import DependencyGraph, node_id
from rootwalk.graph.model import Attributes, EdgeKind, EdgePayload, Evidence, NodePayload
from rootwalk.graph.operations.causes import Cause, CauseKind
from rootwalk.graph.operations.deviations import own_sigmas, peer_sigmas
from rootwalk.graph.operations.window import (
    OperationWindow,
    certainty,
    has_peers,
    heaviest_stage,
    heaviest_transfer,
    heaviest_wait,
    is_rotating,
    waits_without,
)
from rootwalk.graph.reasons import Reason, Signal

__all__ = ["NOISE_RATIO", "build_operation_graph"]

# Causes below this part of the slowdown are not worth a chain; they count as unexplained.
MIN_LISTED_SHARE: Final = 0.10
# Causes below this part of a step without them are noise (method C3, after Holmes), unless many steps agree.
NOISE_RATIO: Final = 0.04
AGREEING_NOISE_RATIO: Final = 0.02
AGREEING_STEPS: Final = 50
# A worker stands out by this much more than the most deviant of so many would by chance.
MIN_Z: Final = 2.0
# It stands out from its own variation by this many standard errors.
MIN_OWN_SIGMAS: Final = 3.0
# Ranks that hardly waited are not victims; a tenth of the longest wait separates them.
MIN_VICTIM_RATIO: Final = 0.1
# With one worker a stage, its work and the worker cannot be told apart.
LONELY_CERTAINTY: Final = 0.4
_REASONS: Final = {
    CauseKind.WORKER: Reason.SLOW_COMPUTE,
    CauseKind.HOST: Reason.UNKNOWN_HOST,
    CauseKind.STAGE: Reason.STAGE_IMBALANCE,
    CauseKind.DATA: Reason.SEQ_IMBALANCE,
    CauseKind.TRANSFER: Reason.UNKNOWN_NET,
}


class _Case:
    """Graph and evidence while they are written."""

    def __init__(self, window: OperationWindow) -> None:
        self.window = window
        self.graph = DependencyGraph()
        self.evidence: dict[str, Evidence] = {}
        self.job_node = node_id("job", window.job)
        self.graph.add_node(self.job_node, NodePayload("job", window.job, {}))
        numbers = window.graph.step_numbers
        job = window.job.replace("'", "''")
        self.where = (
            f"FROM operations WHERE job = '{job}' AND step BETWEEN {numbers[0]} AND {numbers[-1]}"
        )

    def add(
        self,
        name: str,
        signal: Signal,
        value: float,
        *,
        peers: float | None = None,
        z: float | None = None,
        query: str | None = None,
    ) -> str:
        trace_id, span_id = self.window.exemplar
        self.evidence[name] = Evidence(
            id=name,
            signal=signal,
            value=rounded(value),
            unit="s",
            peers=None if peers is None else rounded(peers),
            history=None,
            z=None if z is None else round(z, 3),
            trace_id=trace_id,
            span_id=span_id,
            query=query,
            attributes={},
        )
        return name


def build_operation_graph(
    window: OperationWindow,
) -> tuple[DependencyGraph, tuple[Evidence, ...]]:
    """Return the dependency graph of a window and the evidence that its edges rest on."""
    case = _Case(window)
    step_s = float(window.graph.step_s.mean())
    query = f"SELECT step, (max(end_unix_ns) - min(start_unix_ns)) / 1e9 AS s {case.where} GROUP BY step ORDER BY step"
    step_id = case.add("step", Signal.STEP, step_s, query=query)
    transfer = float(window.costs.shares_s.mean(axis=0)[_position(window, CauseKind.TRANSFER)])
    transfer_id = case.add("transfer", Signal.TRANSFER, transfer)
    for index, cause in enumerate(window.costs.causes):
        if cause.kind is CauseKind.OTHERS or not _is_listed(window, index):
            continue
        if cause.rank is not None:
            _add_rank(case, index, cause, cause.rank, (step_id, transfer_id))
        else:
            _add_common(case, index, cause, (step_id, transfer_id))
    return case.graph, tuple(case.evidence[name] for name in sorted(case.evidence))


def _position(window: OperationWindow, kind: CauseKind) -> int:
    return next(i for i, cause in enumerate(window.costs.causes) if cause.kind is kind)


def _is_listed(window: OperationWindow, index: int) -> bool:
    """Return whether a cause costs more than noise: a little more where many steps agree."""
    shares_s, ideal_s = window.costs.shares_s[:, index], window.costs.ideal_s
    agreeing = int((shares_s >= AGREEING_NOISE_RATIO * ideal_s).sum())
    ratio = AGREEING_NOISE_RATIO if agreeing >= AGREEING_STEPS else NOISE_RATIO
    return float(shares_s.mean()) >= max(ratio * ideal_s, MIN_LISTED_SHARE * window.slowdown_s)


def _per_step(window: OperationWindow, index: int) -> float:
    """Return the seconds of one cause in all operations, per step."""
    return float(window.costs.amounts_s[:, index].sum()) / window.graph.step_numbers.size


def _end(
    case: _Case,
    index: int,
    kind: EdgeKind,
    cited: tuple[str, ...],
    subject: str,
    **told: str | float | None,
) -> EdgePayload:
    """Return the last edge of a chain: it carries the reason and what its replay gave."""
    costs = case.window.costs
    cause = costs.causes[index]
    column = costs.amounts_s[:, index]
    on_path = sorted({node for paths in case.window.paths for node in paths[0].nodes})
    path_s = float(np.maximum(column[on_path], 0.0).sum()) / case.window.graph.step_numbers.size
    attributes: Attributes = {
        "reason": str(_REASONS[cause.kind]),
        "rank": cause.rank,
        "subject": subject,
        "cause": index,
        "share_s": rounded(float(costs.shares_s[:, index].mean())),
        "remove_s": rounded(float(costs.remove_s[index])),
        "add_s": rounded(float(costs.add_s[index])),
        # What another cause hides is on no path; alone it would be.
        "path_s": rounded(max(path_s, float(costs.add_s[index]))),
        **told,
    }
    return EdgePayload(kind, rounded(_per_step(case.window, index)), cited, attributes)


def _add_rank(case: _Case, index: int, cause: Cause, rank: int, cited: tuple[str, str]) -> None:
    """Add the chain of a worker, if it stands out from the others."""
    window = case.window
    rows, costs = window.graph.operations, window.costs
    mine = rows.rank == rank
    z = (
        peer_sigmas(window.graph.operations, window.costs.parts, rank)
        if cause.kind is CauseKind.WORKER
        else None
    )
    if cause.kind is CauseKind.WORKER and not _stands_out(window, rank, z):
        return
    step_id, transfer_id = cited
    node = node_id("rank", rank)
    first = int(np.flatnonzero(mine)[0])
    stage = int(rows.stage[first])
    place: Attributes = {"rank": rank, "replica": int(rows.replica[first]), "stage": stage}
    case.graph.add_node(node, NodePayload("rank", f"worker of rank {rank}", place))
    excess_s = _per_step(window, index)
    _add_wait(case, index, rank, node, step_id)
    if cause.kind is CauseKind.HOST:
        host = node_id("process", "unknown", f"rank{rank}-host")
        case.graph.add_node(host, NodePayload("process", f"host of rank {rank}", {}))
        lost = case.add(f"{Signal.HOST}/rank{rank}", Signal.HOST, excess_s)
        payload = _end(case, index, EdgeKind.BLOCKED, (lost, step_id), host, stage=stage)
        case.graph.add_edge(node, host, payload)
        return
    by_type = np.bincount(rows.type[mine], costs.amounts_s[mine, index], len(rows.types))
    kind = rows.types[int(np.argmax(by_type.round(9)))]
    operation = node_id("operation", rank, kind)
    case.graph.add_node(operation, NodePayload("operation", kind, {"rank": rank}))
    own_s = float(window.graph.work_s[mine & ~rows.is_communication].sum())
    own_s /= window.graph.step_numbers.size
    query = (
        f"SELECT rank, operation_type, median(duration_ns) / 1e9 AS s {case.where} AND stage = {stage}"
        " AND collective IS NULL GROUP BY ALL ORDER BY ALL"
    )
    evidence = (
        case.add(
            f"{Signal.EXCESS}/rank{rank}", Signal.EXCESS, excess_s, peers=0.0, z=z, query=query
        ),
        case.add(
            f"{Signal.COMPUTE}/rank{rank}",
            Signal.COMPUTE,
            own_s,
            peers=own_s - excess_s,
            query=query,
        ),
    )
    payload = _end(
        *(case, index, EdgeKind.RUNNING, (*evidence, transfer_id, step_id), node), stage=stage
    )
    case.graph.add_edge(node, operation, payload)


def _stands_out(window: OperationWindow, rank: int, z: float | None) -> bool:
    """Return whether a worker differs from its peers by more than they differ, and than its own operations vary.

    It must do so by more where there are more workers, of whom one is always the most deviant.
    """
    ranks = np.unique(window.graph.operations.rank).size
    least = MIN_Z + math.sqrt(2.0 * math.log(max(ranks, 2)))
    own = own_sigmas(window.graph.operations, window.graph.work_s, window.costs.parts, rank)
    return (z is None or z >= least) and (own is None or own >= MIN_OWN_SIGMAS)


def _add_wait(case: _Case, index: int, rank: int, node: str, step_id: str) -> None:
    """Add symptom -> collective -> late rank, or symptom -> rank when nobody waited for it."""
    window = case.window
    rows = window.graph.operations
    slowdown = EdgePayload(EdgeKind.SLOWED_BY, rounded(window.slowdown_s), (step_id,), {})
    heaviest = heaviest_wait(window, rank)
    waited_s = waits_without(window, index)
    waited_s[rank] = 0.0
    longest_s = float(waited_s.max(initial=0.0))
    if heaviest is None or longest_s <= 0.0:
        case.graph.add_edge(case.job_node, node, slowdown)
        return
    step, kind = int(rows.step[heaviest]), rows.types[int(rows.type[heaviest])]
    collective = node_id("collective", kind, f"{step}-{int(rows.sequence[heaviest])}-{rank}")
    case.graph.add_node(collective, NodePayload("collective", f"{kind} of step {step}", {}))
    case.graph.add_edge(case.job_node, collective, slowdown)
    victims = np.flatnonzero(waited_s >= MIN_VICTIM_RATIO * longest_s)
    mean_s = float(waited_s[victims].mean())
    query = (
        f"SELECT rank, sum(duration_ns) / 1e9 AS s {case.where} AND collective IS NOT NULL"
        " GROUP BY ALL ORDER BY ALL"
    )
    wait_id = case.add(f"{Signal.WAIT}/rank{rank}", Signal.WAIT, mean_s, query=query)
    attributes: Attributes = {
        "victims": ",".join(str(victim) for victim in victims.tolist()),
        "certainty": rounded(certainty(window, index)),
    }
    payload = EdgePayload(EdgeKind.WAITS_FOR, rounded(mean_s), (wait_id,), attributes)
    case.graph.add_edge(collective, node, payload)


def _add_common(case: _Case, index: int, cause: Cause, cited: tuple[str, str]) -> None:
    """Add a cause that is nobody's: the split into stages, the data, or transfers."""
    window = case.window
    step_id, transfer_id = cited
    pattern: str | None = ""
    stage = None
    if cause.kind is CauseKind.STAGE:
        stage = heaviest_stage(window, index)
        node = node_id("stage", stage)
        payload = NodePayload("stage", f"stage {stage}", {"stage": stage})
        pattern = "stage"
    elif cause.kind is CauseKind.DATA:
        node, payload = (
            node_id("workload", "micro-batches"),
            NodePayload("workload", "the data", {}),
        )
        pattern = "rotating" if is_rotating(window, index) else ""
    else:
        name = heaviest_transfer(window, index)
        node, payload = node_id("communicator", name), NodePayload("communicator", name, {})
    case.graph.add_node(node, payload)
    evidence: tuple[str, ...] = (transfer_id, step_id)
    if cause.kind is not CauseKind.TRANSFER:
        query = (
            f"SELECT stage, operation_type, median(duration_ns) / 1e9 AS s {case.where}"
            " AND collective IS NULL GROUP BY ALL ORDER BY ALL"
        )
        column = np.maximum(window.costs.amounts_s[:, index], 0.0)
        excess_s = float(column.sum()) / window.graph.step_numbers.size
        name = f"{Signal.EXCESS}/{cause.kind}"
        evidence = (case.add(name, Signal.EXCESS, excess_s, peers=0.0, query=query), *evidence)
    is_sure = stage is None or has_peers(window, stage)
    told: Attributes = {"stage": stage, "pattern": pattern}
    told["certainty"] = 1.0 if is_sure else LONELY_CERTAINTY
    end = _end(case, index, EdgeKind.SLOWED_BY, evidence, node, **told)
    case.graph.add_edge(case.job_node, node, end)
