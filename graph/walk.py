"""Walk backward from the end of the window to what was waited for.

    victim   |--exec--|~~~~~~~~~~ wait ~~~~~~~~~~|-exec-|  <- starts here
                                        transfer [--]
    culprit  |------------- exec ---------------|          <- jumps to the last arrival

Owns the path: segments that partition the window's time exactly, and jumps from victims to culprits.

Source:
    Method C4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from rootwalk.graph.columns import FloatArray
from rootwalk.graph.steps import OpKind, StepGraph

# Arrivals closer than the scatter of one host's clock readings are a tie.
MIN_CLOCK_SIGMA_S = 20e-6


class SegmentKind(StrEnum):
    """What a piece of the path was spent on."""

    EXEC = "exec"
    TRANSFER = "transfer"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the path: seconds since the origin, and the operation that it is charged to."""

    kind: SegmentKind
    node: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Jump:
    """The path left a victim for the rank that it waited for."""

    victim: int
    culprit: int
    group: int
    waited_s: float
    certainty: float


@dataclass(frozen=True, slots=True)
class Path:
    """The critical path of a window, latest segment first."""

    start_s: float
    end_s: float
    segments: tuple[Segment, ...]
    jumps: tuple[Jump, ...]

    def check_partition(self, tolerance_s: float = 1e-6) -> bool:
        """Return whether the segments cover the window once, without a gap or an overlap."""
        time_s = self.end_s
        for segment in self.segments:
            if abs(segment.end_s - time_s) > tolerance_s or segment.start_s > segment.end_s:
                return False
            time_s = segment.start_s
        return abs(time_s - self.start_s) <= tolerance_s

    def certainty(self, culprit: int | None = None) -> float:
        """Return the probability that the jumps (to one culprit) were to the right rank.

        The median over the seconds waited: who came last by a hair in a quiet step matters to nobody.
        """
        jumps = [
            jump
            for jump in self.jumps
            if culprit in (None, jump.culprit) and jump.waited_s > MIN_CLOCK_SIGMA_S
        ]
        if not jumps:
            return 1.0
        jumps.sort(key=lambda jump: jump.certainty)
        waited_s = np.cumsum([jump.waited_s for jump in jumps])
        return jumps[int(np.searchsorted(waited_s, waited_s[-1] / 2.0))].certainty


def walk(graph: StepGraph, clock_sigma_s: float) -> Path:
    """Return the path that set the time of the window.

    Args:
        graph: The window; at least one lane.
        clock_sigma_s: Scatter of the aligned clocks; decides how certain close arrivals are.
    """
    sigma_s = max(clock_sigma_s, MIN_CLOCK_SIGMA_S)
    arrivals = _Arrivals(graph)
    node = max(graph.lane_end.values(), key=lambda n: (float(graph.op_end_s[n]), -n))
    time_s = float(graph.op_end_s[node])
    segments: list[Segment] = []
    jumps: list[Jump] = []

    def take(kind: SegmentKind, charged: int, low: float) -> float:
        low = min(max(low, graph.start_s), time_s)
        if low < time_s:
            segments.append(Segment(kind, charged, low, time_s))
        return low

    while time_s > graph.start_s:
        kind = int(graph.kind[node])
        if kind == OpKind.SOURCE:
            time_s = take(SegmentKind.GAP, node, graph.start_s)
        elif kind == OpKind.WAIT:
            released = int(graph.wait_on[node])
            time_s = take(SegmentKind.GAP, node, float(graph.op_end_s[released]))
            node = released
        elif kind == OpKind.EXEC:
            time_s = take(SegmentKind.EXEC, node, float(graph.op_start_s[node]))
            node = int(graph.lane_pred[node])
        else:
            last, ready_s, jump = _last_arrival(graph, arrivals, node, sigma_s)
            time_s = take(SegmentKind.TRANSFER, node, ready_s)
            if jump is not None:
                jumps.append(jump)
            before = int(graph.previous[last])
            is_queued = before >= 0 and graph.op_end_s[before] >= graph.op_start_s[last]
            node = before if is_queued else int(graph.lane_pred[last])
    return Path(graph.start_s, graph.end_s, tuple(segments), tuple(jumps))


class _Arrivals:
    """Who came last to each collective, looked up once: plain numbers, for there are thousands of small groups."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        nodes = np.flatnonzero(graph.kind == OpKind.COLLECTIVE)
        ready = np.zeros(graph.kind.size)
        ready[nodes] = graph.ready_s(nodes)
        self.ready_s: list[float] = ready.tolist()
        self._of_group: dict[int, tuple[int, float]] = {}

    def last(self, node: int) -> tuple[int, float]:
        """Return the member that a collective waited for on a node's rank, and when the one before it was ready."""
        number = int(self._graph.group[node])
        group = self._graph.groups[number]
        if group.depends_on is not None:
            position = group.members.tolist().index(node)
            return self._last_of(group.depends_on[position].tolist())
        if number not in self._of_group:
            self._of_group[number] = self._last_of(group.members.tolist())
        return self._of_group[number]

    def _last_of(self, members: list[int]) -> tuple[int, float]:
        last, latest_s, before_s = members[0], -math.inf, -math.inf
        for member in members:
            ready_s = self.ready_s[member]
            if ready_s >= latest_s:
                last, latest_s, before_s = member, ready_s, latest_s
            elif ready_s > before_s:
                before_s = ready_s
        return last, before_s


def _last_arrival(
    graph: StepGraph, arrivals: _Arrivals, node: int, sigma_s: float
) -> tuple[int, float, Jump | None]:
    """Return the member that one collective waited for, when it was ready, and the jump to it."""
    last, before_s = arrivals.last(node)
    ready_s = arrivals.ready_s[last]
    if last == node:
        return last, ready_s, None
    certainty = 0.5 * (1.0 + math.erf((ready_s - before_s) / (2.0 * sigma_s) / math.sqrt(2.0)))
    victim, culprit = int(graph.rank[node]), int(graph.rank[last])
    waited_s = ready_s - arrivals.ready_s[node]
    return last, ready_s, Jump(victim, culprit, int(graph.group[node]), waited_s, certainty)


def path_seconds(path: Path, graph: StepGraph) -> FloatArray:
    """Return how long the path stayed in each operation, (nodes,), without gaps."""
    seconds = np.zeros(graph.kind.size)
    for segment in path.segments:
        if segment.kind is not SegmentKind.GAP:
            seconds[segment.node] += segment.end_s - segment.start_s
    return seconds


@dataclass(frozen=True, slots=True)
class Waits:
    """Who waited for whose late arrival.

    `series` has seconds per step for (victim, culprit); `heaviest` the group of the longest single wait for each
    culprit, with its seconds.
    """

    series: dict[tuple[int, int], FloatArray]
    heaviest: dict[int, tuple[int, float]]


def waits_by_culprit(graph: StepGraph) -> Waits:
    """Return how long each victim's main thread waited for each culprit's late arrival.

    Only the time up to the last arrival counts: the transfer after it is nobody's lateness.
    """
    series: dict[tuple[int, int], FloatArray] = {}
    heaviest: dict[int, tuple[int, float]] = {}
    arrivals = _Arrivals(graph)
    rank, step = graph.rank.tolist(), graph.step.tolist()
    start, end = graph.op_start_s.tolist(), graph.op_end_s.tolist()
    for node in np.flatnonzero(graph.kind == OpKind.WAIT).tolist():
        member, last, ready_s = _first_cause(graph, node, arrivals)
        waited_s = min(ready_s, end[node]) - start[node]
        victim, culprit = rank[node], rank[last]
        if waited_s <= 0.0 or victim == culprit:
            continue
        pair = (victim, culprit)
        if pair not in series:
            series[pair] = np.zeros(len(graph.step_numbers))
        series[pair][step[node]] += waited_s
        if waited_s > heaviest.get(culprit, (0, 0.0))[1]:
            heaviest[culprit] = (int(graph.group[member]), waited_s)
    return Waits(series, heaviest)


def _first_cause(graph: StepGraph, wait: int, arrivals: _Arrivals) -> tuple[int, int, float]:
    """Return the collective member, its last arrival and when that was ready, behind one wait.

    A member that was queued behind an earlier collective waited for that one's last arrival.
    """
    member = int(graph.wait_on[wait])
    while True:
        last, _ = arrivals.last(member)
        ready_s = arrivals.ready_s[last]
        before = int(graph.previous[last])
        is_queued = before >= 0 and graph.op_end_s[before] >= graph.op_start_s[last]
        if not is_queued or graph.op_end_s[before] <= graph.op_start_s[wait]:
            return member, last, ready_s
        member = before
