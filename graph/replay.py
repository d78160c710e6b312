"""Replay a step graph with parts of its time taken out, and share the difference fairly.

Owns the arithmetic of the counterfactual: many scenarios at once, one column each. Knows nothing of reasons.

Source:
    Method C5: replay, remove, add and Shapley values; C12 for the recurrence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rootwalk.graph.columns import FloatArray
from rootwalk.graph.steps import OpKind, StepGraph

# Exact sharing costs 2 to the number of causes replays; more causes are lumped by the caller.
MAX_EXACT_CAUSES = 7
# Scenarios replayed at once: bounds memory to nodes x this x 8 bytes.
SCENARIOS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """Seconds per step. `share`, `remove` and `add` have one entry per cause, in the given order.

    `simulated_s` is the replay as recorded, `ideal_s` with every cause removed; the shares add up to the
    difference exactly.
    """

    simulated_s: float
    ideal_s: float
    share: tuple[float, ...]
    remove: tuple[float, ...]
    add: tuple[float, ...]


def replay(graph: StepGraph, amounts_s: FloatArray, scenarios: FloatArray) -> FloatArray:
    """Return the mean step time in seconds for each scenario.

    Args:
        graph: The window.
        amounts_s: Seconds of each cause in each operation, (nodes, causes); may be negative.
        scenarios: 1 where a cause is removed, (causes, scenarios).
    """
    parts = [
        _replay_some(graph, amounts_s, scenarios[:, low : low + SCENARIOS_AT_ONCE])
        for low in range(0, scenarios.shape[1], SCENARIOS_AT_ONCE)
    ]
    return np.concatenate(parts)


def _replay_some(graph: StepGraph, amounts_s: FloatArray, scenarios: FloatArray) -> FloatArray:
    work = np.maximum(graph.work_s[:, None] - amounts_s @ scenarios, 0.0)
    end = work
    kinds, preds = graph.kind.tolist(), graph.lane_pred.tolist()
    waits, lags = graph.wait_on.tolist(), graph.lag_s.tolist()
    for item in graph.order:
        if item < 0:
            _replay_group(graph, -1 - item, end)
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


def _replay_group(graph: StepGraph, number: int, end: FloatArray) -> None:
    """Turn the transfer times of one collective into end times, in place."""
    group = graph.groups[number]
    members = group.members
    ready = end[graph.lane_pred[members]] + graph.lag_s[members][:, None]
    before = graph.previous[members]
    has_before = before >= 0
    if has_before.any():
        ready[has_before] = np.maximum(ready[has_before], end[before[has_before]])
    if group.depends_on is None:
        end[members] += ready.max(axis=0)
        return
    position = {node: index for index, node in enumerate(members.tolist())}
    for node, others in zip(members.tolist(), group.depends_on, strict=True):
        end[node] += ready[[position[other] for other in others.tolist()]].max(axis=0)


def removals(graph: StepGraph, amounts_s: FloatArray) -> FloatArray:
    """Return how many seconds a step gains when each cause alone is removed, (causes,)."""
    count = amounts_s.shape[1]
    scenarios = np.hstack([np.zeros((count, 1)), np.eye(count)])
    times = replay(graph, amounts_s, scenarios)
    return np.asarray(times[0] - times[1:], dtype=np.float64)


def share_out(graph: StepGraph, amounts_s: FloatArray) -> Counterfactual:
    """Return what each cause costs per step, in three ways.

    Args:
        graph: The window.
        amounts_s: (nodes, causes) with at most `MAX_EXACT_CAUSES` causes.

    Source:
        Shapley value over all coalitions of removed causes (method C5).
    """
    count = amounts_s.shape[1]
    if count > MAX_EXACT_CAUSES:
        raise ValueError(f"at most {MAX_EXACT_CAUSES} causes, not {count}")
    coalitions = np.array(
        [[(c >> i) & 1 for c in range(2**count)] for i in range(count)], dtype=float
    )
    coalitions = coalitions.reshape(count, 2**count)
    times = replay(graph, amounts_s, coalitions)
    everything = 2**count - 1
    shares = []
    for cause in range(count):
        bit = 1 << cause
        total = 0.0
        for coalition in range(2**count):
            if coalition & bit:
                continue
            size = coalition.bit_count()
            weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
            total += weight * float(times[coalition] - times[coalition | bit])
        shares.append(total)
    ideal = float(times[everything])
    return Counterfactual(
        simulated_s=float(times[0]),
        ideal_s=ideal,
        share=tuple(shares),
        remove=tuple(float(times[0] - times[1 << i]) for i in range(count)),
        add=tuple(float(times[everything ^ (1 << i)]) - ideal for i in range(count)),
    )
