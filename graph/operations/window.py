"""A window of operations, and what its causes do to others: who waits for them, where they sit, how sure the paths are.

Owns the measurements; what becomes of them is `case`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray
from rootwalk.graph.operations.causes import CauseKind, Costs
from rootwalk.graph.operations.graph import OperationGraph
from rootwalk.graph.operations.replay import waits_by_rank
from rootwalk.graph.operations.walk import StepPath

__all__ = [
    "OperationWindow",
    "certainty",
    "has_peers",
    "heaviest_stage",
    "heaviest_transfer",
    "heaviest_wait",
    "is_rotating",
    "waits_without",
]

# How sure it is of a cause that no path meets, because another hides it: the replay alone speaks for it.
HIDDEN_CERTAINTY: Final = 0.6


@dataclass(frozen=True, slots=True)
class OperationWindow:
    """A window of operations and what was found out about it; `exemplar` is trace and span of its slowest step."""

    job: str
    attempt: int
    graph: OperationGraph
    costs: Costs
    paths: list[list[StepPath]]
    exemplar: tuple[str | None, str | None]

    @property
    def slowdown_s(self) -> float:
        """Seconds per step that all causes together cost."""
        return self.costs.simulated_s - self.costs.ideal_s


def heaviest_wait(window: OperationWindow, rank: int) -> int | None:
    """Return the operation that waited longest for an operation of a rank; None when none did."""
    graph, rows = window.graph, window.graph.operations
    grouped = rows.group >= 0
    is_last = grouped & (rows.start_s == graph.arrived_s) & (rows.rank == rank)
    if not is_last.any():
        return None
    behind: BoolArray = np.zeros(int(rows.group.max()) + 1, dtype=np.bool_)
    behind[rows.group[is_last]] = True
    waits = np.where(grouped & behind[rows.group], graph.arrived_s - rows.start_s, 0.0)
    waits[rows.rank == rank] = 0.0
    longest = int(np.argmax(waits.round(9)))
    return longest if waits[longest] > 0.0 else None


def waits_without(window: OperationWindow, index: int) -> FloatArray:
    """Return how much less each rank would wait per step without a cause, (ranks,), at least 0."""
    graph, costs = window.graph, window.costs
    if costs.causes[index].kind is CauseKind.HOST:
        return np.zeros(int(graph.operations.rank.max()) + 1)
    without = np.maximum(graph.work_s - costs.amounts_s[:, index], 0.0)
    waits = waits_by_rank(graph, np.stack([graph.work_s, without], axis=1))
    return np.asarray(np.maximum(waits[:, 0] - waits[:, 1], 0.0), dtype=np.float64)


def certainty(window: OperationWindow, index: int) -> float:
    """Return how sure the paths are to meet a cause: over the steps, and over the ranks that finished last."""
    column = window.costs.amounts_s[:, index]
    is_culprit = column > 0.0
    sure = [paths[0].certainty(is_culprit) for paths in window.paths]
    if window.costs.causes[index].kind is CauseKind.HOST:
        return float(np.median(sure))
    meets = [bool(is_culprit[list(path.nodes)].any()) for paths in window.paths for path in paths]
    return float(np.median(sure)) * max(sum(meets) / len(meets), HIDDEN_CERTAINTY)


def heaviest_stage(window: OperationWindow, index: int) -> int:
    """Return the stage that has the most of a cause."""
    rows = window.graph.operations
    total = np.bincount(np.maximum(rows.stage, 0), window.costs.amounts_s[:, index])
    return int(np.argmax(total.round(9)))


def has_peers(window: OperationWindow, stage: int) -> bool:
    """Return whether several workers have a stage; a single one may be slow itself."""
    rows = window.graph.operations
    return np.unique(rows.rank[rows.stage == stage]).size > 1


def heaviest_transfer(window: OperationWindow, index: int) -> str:
    """Return the type of communication that has the most of a cause."""
    rows = window.graph.operations
    total = np.bincount(rows.type, window.costs.amounts_s[:, index], len(rows.types))
    return rows.types[int(np.argmax(total.round(9)))]


def is_rotating(window: OperationWindow, index: int) -> bool:
    """Return whether another replica has the most of a cause in most of the steps."""
    rows, graph = window.graph.operations, window.graph
    replicas = int(rows.replica.max()) + 1
    place = graph.step * replicas + np.maximum(rows.replica, 0)
    total = np.bincount(place, window.costs.amounts_s[:, index], graph.step_numbers.size * replicas)
    worst = total.reshape(-1, replicas).round(9).argmax(axis=1)
    return bool(worst.size > 1 and int(np.bincount(worst).max()) * 2 < worst.size)
