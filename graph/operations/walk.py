"""Walk backward through the recorded operations of a step, from its end to its beginning.

    receiver  |--exec--|~~~~~~~~ receive ~~~~~~~~~~|-exec-|  <- starts here
                                        transfer [--]
    sender    |------------- exec -------------|          <- jumps to the last arrival

Owns the paths: pieces that cover each step's time once, and the jumps from victims to those they waited for. Where the
path spends its time is no cause; how sure it is to have gone the right way matters for those that it passes.

Source:
    Method C4, and C9, pitfall 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray, IntArray
from rootwalk.graph.operations.graph import OperationGraph
from rootwalk.graph.walk import MIN_CLOCK_SIGMA_S

__all__ = ["StepPath", "walk_operations"]


@dataclass(frozen=True, slots=True)
class StepPath:
    """The path of one step: its pieces, latest first, with the node each is charged to, and its jumps.

    Attributes:
        nodes: Node of each piece.
        starts_s: When each piece begins; it ends where the piece before begins, the first at `end_s`.
        is_gap: Whether nothing that is recorded was done in it.
        jumps: Of each the member that waited, the last to come, seconds waited, how sure it is that it was last.
        end_s: Time of the step.
    """

    nodes: tuple[int, ...]
    starts_s: tuple[float, ...]
    is_gap: tuple[bool, ...]
    jumps: tuple[tuple[int, int, float, float], ...]
    end_s: float

    def seconds(self) -> FloatArray:
        """Return the length of each piece."""
        return np.asarray(-np.diff([self.end_s, *self.starts_s]), dtype=np.float64)

    def check_partition(self, tolerance_s: float = 1e-6) -> bool:
        """Return whether the pieces cover the step once: none is negative and the last begins at 0."""
        last_s = self.starts_s[-1] if self.starts_s else self.end_s
        return bool((self.seconds() >= 0.0).all()) and abs(last_s) <= tolerance_s

    def certainty(self, is_culprit: BoolArray) -> float:
        """Return the probability that the jumps to some nodes were right: the median over the seconds waited."""
        jumps = [
            (sure, waited)
            for _, last, waited, sure in self.jumps
            if is_culprit[last] and waited > MIN_CLOCK_SIGMA_S
        ]
        if not jumps:
            return 1.0
        jumps.sort()
        waited_s = np.cumsum([waited for _, waited in jumps])
        return jumps[int(np.searchsorted(waited_s, waited_s[-1] / 2.0))][0]


def walk_operations(
    graph: OperationGraph, clock_sigma_s: float, finishers: int = 1
) -> list[list[StepPath]]:
    """Return for each step the paths from its last operations, of different ranks, the very last first.

    Args:
        graph: The operations.
        clock_sigma_s: Scatter of the aligned clocks; decides how certain close arrivals are.
        finishers: How many ranks to begin at.
    """
    rows = graph.operations
    first_of_group = _first_of_group(graph)
    paths = []
    for step in range(graph.step_numbers.size):
        nodes = np.flatnonzero(graph.step == step)
        last: dict[int, int] = {}
        for node in nodes[np.lexsort((nodes, -rows.end_s[nodes]))]:
            last.setdefault(int(rows.rank[node]), int(node))
            if len(last) == finishers:
                break
        sigma_s = max(clock_sigma_s, MIN_CLOCK_SIGMA_S)
        paths.append([_walk(graph, first_of_group, node, sigma_s) for node in last.values()])
    return paths


def _first_of_group(graph: OperationGraph) -> IntArray:
    """Return the first node of each group, (groups,); its members follow each other in the order of the nodes."""
    group = graph.operations.group
    heads = np.flatnonzero((group >= 0) & (np.diff(group, prepend=-1) != 0))
    first = np.zeros(int(group.max(initial=-1)) + 1, dtype=np.int64)
    first[group[heads]] = heads
    return first


def _last_members(graph: OperationGraph, first: int) -> tuple[int, int]:
    """Return who of the group that begins at a node came last and last but one; of a lone member it is the same."""
    rows = graph.operations
    stop = first + 1
    while stop < rows.group.size and rows.group[stop] == rows.group[first]:
        stop += 1
    order = first + np.lexsort((np.arange(stop - first), -rows.start_s[first:stop]))
    return int(order[0]), int(order[min(1, order.size - 1)])


def _walk(graph: OperationGraph, first_of_group: IntArray, node: int, sigma_s: float) -> StepPath:
    rows, count = graph.operations, graph.work_s.size
    end_s = time_s = float(rows.end_s[node])
    nodes: list[int] = []
    starts: list[float] = []
    gaps: list[bool] = []
    jumps: list[tuple[int, int, float, float]] = []

    def take(charged: int, low: float, is_gap: bool) -> float:
        low = min(max(low, 0.0), time_s)
        if low < time_s:
            nodes.append(charged)
            starts.append(low)
            gaps.append(is_gap)
        return low

    while time_s > 0.0:
        group = int(rows.group[node])
        if group >= 0:
            last, second = _last_members(graph, int(first_of_group[group]))
            came_s = float(rows.start_s[last])
            time_s = take(node, came_s, False)
            if last != node and rows.rank[last] != rows.rank[node]:
                second_s = float(rows.start_s[second])
                sure = 0.5 * (1.0 + math.erf((came_s - second_s) / (2.0 * sigma_s) / math.sqrt(2)))
                jumps.append((node, last, came_s - float(rows.start_s[node]), sure))
            node = last
        else:
            time_s = take(node, float(rows.start_s[node]), False)
        preds = graph.preds[graph.pred_start[node] : graph.pred_start[node + 1]].tolist()
        before = max(preds, key=lambda p: rows.end_s[p] if p < count else 0.0)
        time_s = take(node, float(rows.end_s[before]) if before < count else 0.0, True)
        if before == count:
            break
        node = before
    return StepPath(tuple(nodes), tuple(starts), tuple(gaps), tuple(jumps), end_s)
