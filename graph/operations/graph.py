"""The step graph of a job of which every operation is recorded, ready to be replayed.

    stage 0   |- forward 0 -|- forward 1 -|~~~~~~~~~~~~~~~~~~~|- backward 0 -|      lane of computations
                            [ send 0 ]    [     receive 0     ]                     lanes of messages
    stage 1                 [receive 0]|- forward 0 -|- backward 0 -|

Owns the graph: nodes are the operations, in an order in which every node comes after all that it waits for; members of
a group start to move when the last of them is there. An operation that starts later than all that rules tell it waits
for, at the moment when another of its rank ends, gets that edge too: no rule told it.

Source:
    Method C4 and C9, pitfall 1: what looks like a delay is most often a missing edge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rootwalk.graph.columns import FloatArray, IntArray
from rootwalk.graph.operations.arrays import Operations, group_maxima, numbered, take
from rootwalk.graph.operations.edges import Edges, find_touching, known_edges
from rootwalk.graph.operations.levels import Level, Order, order_levels

__all__ = ["OperationGraph", "build_operations"]

# An operation that starts later than this after all that it waits for is late: something else held it.
MIN_DELAY_S = 1e-3


@dataclass(frozen=True, slots=True)
class OperationGraph:
    """The operations in order, and what each waits for.

    Attributes:
        operations: In the order of the nodes; times from the beginning of the step.
        work_s: Seconds of each computation, and of each communication after its last member came; (nodes,).
        delay_s: Seconds between the last of what a node waits for and its start, (nodes,); below 0 where it started
            before that ended.
        arrived_s: When the last member of its group was there; its own start without a group; (nodes,).
        preds: Nodes that each node waits for, node after node; the number of nodes stands for the step's beginning.
        pred_start: Where the part of each node in `preds` begins, (nodes + 1,).
        levels: The nodes in slices that depend on earlier slices alone.
        last: Nodes that nothing waits for: one of them is its step's end, whatever is taken out.
        step: Position of each node's step in `step_numbers`.
        found: How many edges no rule told.
        circular: Operations that wait for each other in a circle; then there are no nodes.
    """

    operations: Operations
    work_s: FloatArray
    delay_s: FloatArray
    arrived_s: FloatArray
    preds: IntArray
    pred_start: IntArray
    levels: tuple[Level, ...]
    last: IntArray
    step: IntArray
    step_numbers: IntArray
    found: int
    circular: int

    @property
    def step_s(self) -> FloatArray:
        """Recorded time of each step, (steps,)."""
        result = np.zeros(self.step_numbers.size)
        np.maximum.at(result, self.step, self.operations.end_s)
        return result


def build_operations(operations: Operations) -> OperationGraph:
    """Return the step graph of operations on one clock."""
    rows = _begin_at_zero(_sorted(operations))
    count = rows.step.size
    known = known_edges(rows)
    late = _delays(rows, known) > MIN_DELAY_S
    touching = find_touching(rows, late)
    edges = known.plus(touching)
    order = order_levels(count, rows.group, edges.source, edges.target)
    if order.circular:
        touching = Edges(touching.source[:0], touching.target[:0])
        edges = known
        order = order_levels(count, rows.group, edges.source, edges.target)
    return _finish(rows, edges, order, touching.source.size)


def _sorted(operations: Operations) -> Operations:
    _, place = numbered(operations.step, operations.rank)
    _, name = numbered(operations.sequence, operations.type)
    return take(operations, np.lexsort((name, operations.start_s, place)))


def _begin_at_zero(rows: Operations) -> Operations:
    """Return the operations with times from the first start of their step."""
    _, step = numbered(rows.step)
    first = np.full(int(step.max(initial=0)) + 1, np.inf)
    np.minimum.at(first, step, rows.start_s)
    return replace(rows, start_s=rows.start_s - first[step], end_s=rows.end_s - first[step])


def _delays(rows: Operations, edges: Edges) -> FloatArray:
    """Return how long after the last of what it waits for each operation started, (operations,)."""
    released = np.zeros(rows.step.size)
    np.maximum.at(released, edges.target, rows.end_s[edges.source])
    return np.asarray(rows.start_s - released, dtype=np.float64)


def _finish(rows: Operations, edges: Edges, order: Order, found: int) -> OperationGraph:
    if order.circular:
        order = Order(order.nodes[:0], (), order.circular)
    count = order.nodes.size
    number = np.full(rows.step.size, -1, dtype=np.int64)
    number[order.nodes] = np.arange(count)
    operations = take(rows, order.nodes)
    is_there = number[edges.target] >= 0
    source, target = number[edges.source[is_there]], number[edges.target[is_there]]
    first_nodes = np.flatnonzero(np.bincount(target, minlength=count) == 0)
    source = np.concatenate([source, np.full(first_nodes.size, count)])
    target = np.concatenate([target, first_nodes])
    # By target, then by source: one number each sorts ten times as fast as two.
    target, source = np.divmod(np.sort(target * (count + 1) + source), count + 1)
    arrived_s = group_maxima(operations.group, operations.start_s)
    step_rows, step = numbered(operations.step)
    return OperationGraph(
        operations=operations,
        work_s=np.maximum(operations.end_s - arrived_s, 0.0),
        delay_s=_delays(operations, Edges(source[source < count], target[source < count])),
        arrived_s=arrived_s,
        preds=source,
        pred_start=np.searchsorted(target, np.arange(count + 1)).astype(np.int64),
        levels=order.levels,
        last=np.flatnonzero(np.bincount(source, minlength=count + 1)[:count] == 0),
        step=step,
        step_numbers=operations.step[step_rows],
        found=found,
        circular=order.circular,
    )
