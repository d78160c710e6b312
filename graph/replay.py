"""Replay a step graph with parts of its time taken out, and share the difference fairly.

Owns the arithmetic of the counterfactual: many scenarios at once, one column each. Knows nothing of reasons.

Source:
    Method C5: replay, remove, add and Shapley values; C12 for the recurrence.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from rootwalk.graph.columns import FloatArray, IntArray
from rootwalk.graph.steps import OpKind, StepGraph

# Exact sharing costs 2 to the number of causes replays; more causes are lumped by the caller.
MAX_EXACT_CAUSES = 7
# Scenarios replayed at once: bounds memory to nodes x this x 8 bytes.
SCENARIOS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """Seconds per step. `share`, `remove` and `add` have one entry per cause, in the given order.

    `simulated_s` is the replay as recorded, `ideal_s` with every cause removed; the shares add up to the
    difference exactly. `times_s` are the replays of all coalitions (`coalitions_of`), none where there was no replay.
    """

    simulated_s: float
    ideal_s: float
    share: tuple[float, ...]
    remove: tuple[float, ...]
    add: tuple[float, ...]
    times_s: tuple[float, ...] = ()

    def together(self, causes: Collection[int]) -> tuple[float, float, float]:
        """Return share, remove and add of some causes taken as one.

        Without a replay they are the sums: what each takes out then is nobody else's.
        """
        share_s, remove_s, add_s = (
            math.fsum(times[cause] for cause in causes)
            for times in (self.share, self.remove, self.add)
        )
        if not self.times_s:
            return share_s, remove_s, add_s
        mask = sum(1 << cause for cause in causes)
        rest = (len(self.times_s) - 1) ^ mask
        return share_s, self.simulated_s - self.times_s[mask], self.times_s[rest] - self.ideal_s


def replay(graph: StepGraph, amounts_s: FloatArray, scenarios: FloatArray) -> FloatArray:
    """Return the mean step time in seconds for each scenario.

    Args:
        graph: The window.
        amounts_s: Seconds of each cause in each operation, (nodes, causes); may be negative.
        scenarios: 1 where a cause is removed, (causes, scenarios).
    """
    meetings = _meetings(graph)
    parts = [
        _replay_some(graph, meetings, amounts_s, scenarios[:, low : low + SCENARIOS_AT_ONCE])
        for low in range(0, scenarios.shape[1], SCENARIOS_AT_ONCE)
    ]
    return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class _Meeting:
    """What one collective's members wait for: their lanes, lags after them, and for some the collective before."""

    members: IntArray
    lanes: IntArray
    lag_s: FloatArray
    queued: IntArray
    before: IntArray
    depends_on: tuple[IntArray, ...] | None


def _meetings(graph: StepGraph) -> list[_Meeting]:
    """Return the collectives of a graph, looked up once for all scenarios."""
    sizes = [group.members.size for group in graph.groups]
    members = np.concatenate([np.zeros(0, np.int64), *(group.members for group in graph.groups)])
    lanes, before = graph.lane_pred[members], graph.previous[members]
    lag_s = graph.lag_s[members][:, None]
    has_before = before >= 0
    found, low = [], 0
    for group, size in zip(graph.groups, sizes, strict=True):
        own = slice(low, low + size)
        queued = np.flatnonzero(has_before[own])
        depends_on = None
        if group.depends_on is not None:
            position = {node: index for index, node in enumerate(group.members.tolist())}
            depends_on = tuple(
                np.array([position[other] for other in others.tolist()], dtype=np.int64)
                for others in group.depends_on
            )
        found.append(
            _Meeting(group.members, lanes[own], lag_s[own], queued, before[own][queued], depends_on)
        )
        low += size
    return found


def _replay_some(
    graph: StepGraph, meetings: list[_Meeting], amounts_s: FloatArray, scenarios: FloatArray
) -> FloatArray:
    work = np.maximum(graph.work_s[:, None] - amounts_s @ scenarios, 0.0)
    end = work
    kinds, preds = graph.kind.tolist(), graph.lane_pred.tolist()
    waits, lags = graph.wait_on.tolist(), graph.lag_s.tolist()
    for item in graph.order:
        if item < 0:
            _replay_group(meetings[-1 - item], end)
            continue
        kind = kinds[item]
        if kind == OpKind.EXEC:
            end[item] += end[preds[item]]
        elif kind == OpKind.WAIT:
            np.maximum(end[preds[item]], end[waits[item]] + lags[item], out=end[item])
        else:
            end[item] = graph.op_end_s[item]
    finish = end[list(graph.lane_end.values())].max(axis=0)
    return np.asarray((finish - graph.start_s) / len(graph.step_numbers), dtype=np.float64)


def _replay_group(meeting: _Meeting, end: FloatArray) -> None:
    """Turn the transfer times of one collective into end times, in place."""
    ready = end[meeting.lanes]
    ready += meeting.lag_s
    if meeting.queued.size:
        ready[meeting.queued] = np.maximum(ready[meeting.queued], end[meeting.before])
    if meeting.depends_on is None:
        end[meeting.members] += ready.max(axis=0)
        return
    for node, others in zip(meeting.members.tolist(), meeting.depends_on, strict=True):
        end[node] += ready[others].max(axis=0)


def removals(graph: StepGraph, amounts_s: FloatArray) -> FloatArray:
    """Return how many seconds a step gains when each cause alone is removed, (causes,)."""
    count = amounts_s.shape[1]
    scenarios = np.hstack([np.zeros((count, 1)), np.eye(count)])
    times = replay(graph, amounts_s, scenarios)
    return np.asarray(times[0] - times[1:], dtype=np.float64)


def coalitions_of(count: int) -> FloatArray:
    """Return which of so many causes each coalition takes out, (causes, 2 to the number of causes)."""
    listed = [[(c >> i) & 1 for c in range(2**count)] for i in range(count)]
    return np.array(listed, dtype=float).reshape(count, 2**count)


def share_coalitions(times_s: FloatArray, count: int) -> FloatArray:
    """Return the fair share of each cause, (..., causes), from the times of all coalitions, (..., 2 to the causes).

    Source:
        Shapley value over all coalitions of removed causes (method C5).
    """
    shares = np.zeros((*times_s.shape[:-1], count))
    for cause in range(count):
        bit = 1 << cause
        for coalition in range(2**count):
            if coalition & bit:
                continue
            size = coalition.bit_count()
            weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
            gained_s = times_s[..., coalition] - times_s[..., coalition | bit]
            shares[..., cause] += weight * gained_s
    return shares


def share_out(graph: StepGraph, amounts_s: FloatArray) -> Counterfactual:
    """Return what each cause costs per step, in three ways.

    Args:
        graph: The window.
        amounts_s: (nodes, causes) with at most `MAX_EXACT_CAUSES` causes.
    """
    count = amounts_s.shape[1]
    if count > MAX_EXACT_CAUSES:
        raise ValueError(f"at most {MAX_EXACT_CAUSES} causes, not {count}")
    times = replay(graph, amounts_s, coalitions_of(count))
    everything = 2**count - 1
    shares = share_coalitions(times, count)
    ideal = float(times[everything])
    return Counterfactual(
        simulated_s=float(times[0]),
        ideal_s=ideal,
        share=tuple(shares.tolist()),
        remove=tuple(float(times[0] - times[1 << i]) for i in range(count)),
        add=tuple(float(times[everything ^ (1 << i)]) - ideal for i in range(count)),
        times_s=tuple(times.tolist()),
    )
