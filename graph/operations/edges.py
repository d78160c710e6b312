"""What had to end before what could start, among the operations of one rank: by rules, and by what the records show.

    computation    |- forward 0 -|- forward 1 -|~~~~~~|- backward 0 -|    one lane
    sends                        [ send 0 ]                            after its computation
    receives       [ receive 0 ]                [ receive ]            before its computation, after the one before that

Owns the edges inside a rank; those between ranks are groups. Every edge goes from an operation to a later one.

Source:
    Method C4; the rules for messages are those of StragglerAnalysis, analyzer/dependency_model.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray, IntArray
from rootwalk.graph.operations.arrays import Operations, numbered

__all__ = ["Edges", "find_touching", "known_edges"]

# An end and a start within this time are one moment: traces resolve a tenth of a millisecond or better.
TOUCH_S = 0.5e-3
# Longer than any step: tells the times of different lanes apart on one axis.
_LANE_S = 1e5
_NO_EDGES = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Edges:
    """Operations that end first, and those that wait for them; (edges,) each."""

    source: IntArray
    target: IntArray

    def plus(self, other: Edges) -> Edges:
        """Return these edges and others."""
        return Edges(
            np.concatenate([self.source, other.source]), np.concatenate([self.target, other.target])
        )


def known_edges(operations: Operations) -> Edges:
    """Return the edges that rules tell, for operations sorted by step, rank and start."""
    _, place = numbered(operations.step, operations.rank)
    computes = ~operations.is_communication
    aside = ~operations.is_message & ~computes
    aside[aside] = _overlaps(operations, place, computes, np.flatnonzero(aside))
    main = np.flatnonzero(~operations.is_message & ~aside)
    beside = np.flatnonzero(operations.is_message | aside)
    edges = _chain(main, place[main])
    edges = edges.plus(_chain(beside, numbered(place[beside], operations.type[beside])[1]))
    edges = edges.plus(_around(operations, place, main, np.flatnonzero(aside)))
    return edges.plus(_message_edges(operations, place, np.flatnonzero(computes)))


def find_touching(operations: Operations, late: BoolArray) -> Edges:
    """Return for late operations the one of their rank that ended just when they started, where there is one."""
    _, place = numbered(operations.step, operations.rank)
    targets = np.flatnonzero(late)
    axis = _axis(place, operations.end_s)
    order = np.argsort(axis, kind="stable")
    wanted = _axis(place[targets], operations.start_s[targets])
    found = np.searchsorted(axis[order], wanted + TOUCH_S, side="right") - 1
    source = order[np.maximum(found, 0)]
    touches = (found >= 0) & (axis[source] >= wanted - TOUCH_S)
    touches &= operations.start_s[source] < operations.start_s[targets]
    group = operations.group
    touches &= (group[source] < 0) | (group[source] != group[targets])
    return Edges(source[touches].astype(np.int64), targets[touches])


def _axis(lane: IntArray, time_s: FloatArray) -> FloatArray:
    return np.asarray(lane * _LANE_S + time_s, dtype=np.float64)


def _chain(nodes: IntArray, lane: IntArray) -> Edges:
    """Return the edges along lanes, for nodes in the order of their starts within each lane."""
    order = np.argsort(lane, kind="stable")
    follows = np.flatnonzero(np.diff(lane[order]) == 0)
    return Edges(nodes[order[follows]], nodes[order[follows + 1]])


def _overlaps(
    operations: Operations, place: IntArray, computes: BoolArray, nodes: IntArray
) -> BoolArray:
    """Return which of these operations run beside a computation of their rank."""
    numbers = np.flatnonzero(computes)
    if not numbers.size:
        return np.zeros(nodes.size, dtype=np.bool_)
    starts = _axis(place[numbers], operations.start_s[numbers])
    ends = np.maximum.accumulate(_axis(place[numbers], operations.end_s[numbers]))
    begin = _axis(place[nodes], operations.start_s[nodes]) + TOUCH_S
    # The last computation that starts before this operation ends.
    last = np.searchsorted(
        starts, _axis(place[nodes], operations.end_s[nodes]) - TOUCH_S, side="left"
    )
    return np.asarray((last > 0) & (ends[np.maximum(last - 1, 0)] > begin), dtype=np.bool_)


def _last_ended(
    operations: Operations, place: IntArray, among: IntArray, nodes: IntArray
) -> IntArray:
    """Return for each node the operation of its rank, among some, that ended last before it started; -1 without one."""
    if not among.size:
        return np.full(nodes.size, -1, dtype=np.int64)
    axis = _axis(place[among], operations.end_s[among])
    order = np.argsort(axis, kind="stable")
    wanted = _axis(place[nodes], operations.start_s[nodes]) + TOUCH_S
    found = np.searchsorted(axis[order], wanted, side="right") - 1
    candidate = among[order[np.maximum(found, 0)]]
    return np.where((found >= 0) & (place[candidate] == place[nodes]), candidate, -1)


def _first_started(
    operations: Operations, place: IntArray, among: IntArray, nodes: IntArray
) -> IntArray:
    """Return for each node the operation of its rank, among some, that started first after it ended; -1 without one."""
    if not among.size:
        return np.full(nodes.size, -1, dtype=np.int64)
    axis = _axis(place[among], operations.start_s[among])
    order = np.argsort(axis, kind="stable")
    wanted = _axis(place[nodes], operations.end_s[nodes]) - TOUCH_S
    found = np.searchsorted(axis[order], wanted, side="left")
    candidate = among[order[np.minimum(found, order.size - 1)]]
    is_there = (found < order.size) & (place[candidate] == place[nodes])
    return np.where(is_there, candidate, -1)


def _around(operations: Operations, place: IntArray, main: IntArray, aside: IntArray) -> Edges:
    """Return the edges of collectives beside the computations: from the one before, to the first one after."""
    before = _last_ended(operations, place, main, aside)
    after = _first_started(operations, place, main, aside)
    return Edges(
        np.concatenate([before[before >= 0], aside[after >= 0]]),
        np.concatenate([aside[before >= 0], after[after >= 0]]),
    )


def _message_edges(operations: Operations, place: IntArray, computes: IntArray) -> Edges:
    """Return the edges between computations and the sends and receives of what they give and take."""
    edges = Edges(_NO_EDGES, _NO_EDGES)
    _, line = numbered(place, operations.phase)
    computed = np.bincount(line[computes], minlength=int(line.max(initial=0)) + 1)
    for is_send in (True, False):
        nodes = np.flatnonzero(operations.is_message & (operations.is_send == is_send))
        sent = np.bincount(line[nodes], minlength=computed.size)
        is_paired = sent[line[nodes]] == computed[line[nodes]]
        paired, alone = nodes[is_paired], nodes[~is_paired]
        own = _same_sequence(operations, line, computes, paired, 0)
        if is_send:
            ended = _last_ended(operations, place, computes, alone)
            edges = edges.plus(_drawn(own, paired)).plus(_drawn(ended, alone))
            continue
        started = _first_started(operations, place, computes, alone)
        before = _same_sequence(operations, line, computes, paired, -1)
        edges = edges.plus(_drawn(paired, own)).plus(_drawn(alone, started))
        edges = edges.plus(_drawn(before, paired))
    return edges


def _drawn(source: IntArray, target: IntArray) -> Edges:
    is_there = (source >= 0) & (target >= 0)
    return Edges(source[is_there], target[is_there])


def _same_sequence(
    operations: Operations, line: IntArray, among: IntArray, nodes: IntArray, shift: int
) -> IntArray:
    """Return for each node the operation on its line, among some, with its number plus `shift`; -1 without one."""
    if not among.size:
        return np.full(nodes.size, -1, dtype=np.int64)
    span = int(operations.sequence.max()) + 2
    key = line[among] * span + operations.sequence[among]
    order = np.argsort(key, kind="stable")
    number = operations.sequence[nodes] + shift
    wanted = line[nodes] * span + number
    found = np.minimum(np.searchsorted(key[order], wanted), order.size - 1)
    candidate = among[order[found]]
    return np.where((number >= 0) & (key[order][found] == wanted), candidate, -1)
