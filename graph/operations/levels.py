"""Put nodes in slices that depend on earlier slices alone, all steps and ranks at once.

A node waits for its predecessors; the members of a group end only when all have started, so that a group takes its
place as a whole. Owns the order; knows nothing of times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rootwalk.graph.columns import IntArray
from rootwalk.graph.operations.arrays import numbered

__all__ = ["Level", "Order", "order_levels"]


@dataclass(frozen=True, slots=True)
class Level:
    """Nodes first to stop; from `grouped` on they are members of groups, of which each begins at one of `groups`."""

    first: int
    grouped: int
    stop: int
    groups: IntArray


@dataclass(frozen=True, slots=True)
class Order:
    """The nodes in order, (nodes,), their slices, and how many wait in a circle and are not among them."""

    nodes: IntArray
    levels: tuple[Level, ...]
    circular: int


def order_levels(count: int, group: IntArray, source: IntArray, target: IntArray) -> Order:
    """Return the nodes in slices.

    Args:
        count: Number of nodes.
        group: Of each node, negative for none, (nodes,).
        source: Node that has to end first, (edges,).
        target: Node that waits for it, (edges,).
    """
    unit = np.where(group >= 0, group + count, np.arange(count))
    first_of_unit, unit = numbered(unit)
    depth = _depths(first_of_unit.size, unit[source], unit[target])[unit]
    nodes = np.lexsort((np.arange(count), unit, group >= 0, depth))
    nodes = nodes[depth[nodes] >= 0]
    depths, grouped = depth[nodes], group[nodes] >= 0
    bounds = np.flatnonzero(np.diff(depths)) + 1 if nodes.size else np.zeros(0, dtype=np.int64)
    levels = []
    for first, stop in zip(
        [0, *bounds.tolist()], [*bounds.tolist(), nodes.size] if nodes.size else [], strict=False
    ):
        middle = first + int(np.count_nonzero(~grouped[first:stop]))
        units = unit[nodes[middle:stop]]
        heads = np.flatnonzero(np.diff(units, prepend=-1))
        levels.append(Level(first, middle, stop, heads.astype(np.int64)))
    return Order(nodes.astype(np.int64), tuple(levels), count - nodes.size)


def _depths(count: int, source: IntArray, target: IntArray) -> IntArray:
    """Return how many units come before each on the longest way to it; -1 for those in or behind a circle."""
    depth = np.full(count, -1, dtype=np.int64)
    order = np.argsort(source, kind="stable")
    targets = target[order]
    first = np.searchsorted(source[order], np.arange(count + 1))
    waiting = np.bincount(target, minlength=count)
    ready = np.flatnonzero(waiting == 0)
    level = 0
    while ready.size:
        depth[ready] = level
        sizes = first[ready + 1] - first[ready]
        offsets = np.repeat(first[ready] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
        released, counts = np.unique(
            targets[np.arange(int(sizes.sum())) + offsets], return_counts=True
        )
        waiting[released] -= counts
        ready = released[waiting[released] == 0]
        level += 1
    return depth
