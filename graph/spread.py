"""Distribute seconds that are known per region over the operations of the region.

Owns the weights: seconds go where the excess is, else where the work is.
"""

from __future__ import annotations

import numpy as np

from rootwalk.graph.columns import FloatArray, IntArray
from rootwalk.graph.steps import OpKind, StepGraph


class Spread:
    """Distributes a region's seconds over its operations: where the excess is, else where the work is."""

    def __init__(self, graph: StepGraph, slot_excess: FloatArray, slot_s: FloatArray) -> None:
        self.nodes: IntArray = np.flatnonzero(graph.kind == OpKind.EXEC)
        region_of_slot = np.zeros(len(graph.keys.slots), dtype=np.int64)
        is_lane = np.zeros(len(graph.keys.slots), dtype=np.bool_)
        for (region, _, is_collective), number in graph.keys.slots.items():
            region_of_slot[number] = region
            is_lane[number] = not is_collective
        self.region_of_node = region_of_slot[graph.slot[self.nodes]]
        self.step_of_node = graph.step[self.nodes]
        positive = np.where(is_lane[:, None], np.maximum(slot_excess, 0.0), 0.0)
        work = np.where(is_lane[:, None], np.nan_to_num(slot_s), 0.0)
        shape = (len(graph.keys.regions), slot_s.shape[1])
        by_excess, by_work = np.zeros(shape), np.zeros(shape)
        np.add.at(by_excess, region_of_slot, positive)
        np.add.at(by_work, region_of_slot, work)
        self.part_of_slot = np.ones(graph.kind.size)
        slots, steps = graph.slot[self.nodes], self.step_of_node
        own_s = graph.work_s[self.nodes]
        self.part_of_slot[self.nodes] = own_s / np.maximum(work[slots, steps], 1e-12)
        place = (self.region_of_node, steps)
        total = by_excess[place]
        plain = own_s / np.maximum(by_work[place], 1e-12)
        excess = positive[slots, steps] * self.part_of_slot[self.nodes]
        self.weight = np.where(total > 0.0, excess / np.where(total > 0.0, total, 1.0), plain)

    def place(self, region_s: FloatArray) -> FloatArray:
        """Return seconds per operation of `nodes` from seconds per region and step."""
        return np.asarray(region_s[self.region_of_node, self.step_of_node] * self.weight)


def rank_of_slot(window: StepGraph) -> IntArray:
    """Return the rank of each slot of a step graph."""
    rank_of_region = [key[0] for key in window.keys.regions]
    result = np.zeros(len(window.keys.slots), dtype=np.int64)
    for (region, _, _), number in window.keys.slots.items():
        result[number] = rank_of_region[region]
    return result
