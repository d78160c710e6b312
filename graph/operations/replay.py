"""Replay a graph of operations with parts of their time taken out, many scenarios at once.

Owns the recurrence: a node starts when all that it waits for has ended, a group moves when its last member is there.

Source:
    Method C5 and C12.
"""

from __future__ import annotations

import numpy as np

from rootwalk.graph.columns import FloatArray
from rootwalk.graph.operations.graph import OperationGraph

__all__ = ["replay_operations", "replay_scenarios", "replay_times", "waits_by_rank"]

# Numbers that one replay holds at once: bounds memory to 8 bytes times this.
MAX_NUMBERS = 4_000_000


def replay_operations(
    graph: OperationGraph, work_s: FloatArray, delay_s: FloatArray | None = None
) -> FloatArray:
    """Return the time of each step in each scenario, (steps, scenarios), seconds.

    Args:
        graph: The operations.
        work_s: Seconds of work of each node in each scenario, (nodes, scenarios).
        delay_s: Seconds by which each node starts late, likewise; None for no delays.
    """
    return _longest(graph, _run(graph, work_s, delay_s, None))


def replay_times(
    graph: OperationGraph, work_s: FloatArray, delay_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return when each node starts and ends, (nodes,) each, seconds from the beginning of its step.

    Args:
        graph: The operations.
        work_s: Seconds of work of each node, (nodes,).
        delay_s: Seconds by which each starts late, (nodes,).
    """
    waited_s = np.zeros((work_s.size, 1))
    end_s = _run(graph, work_s[:, None], delay_s[:, None], waited_s)
    return end_s[:, 0] - work_s - waited_s[:, 0], end_s[:, 0]


def waits_by_rank(graph: OperationGraph, work_s: FloatArray) -> FloatArray:
    """Return how long each rank's communications wait for their last member, per step, (ranks, scenarios).

    Args:
        graph: The operations.
        work_s: Seconds of work of each node in each scenario, (nodes, scenarios).
    """
    waited = np.zeros_like(work_s)
    _run(graph, work_s, None, waited)
    result = np.zeros((int(graph.operations.rank.max()) + 1, work_s.shape[1]))
    np.add.at(result, graph.operations.rank, waited)
    return result / graph.step_numbers.size


def _run(
    graph: OperationGraph,
    work_s: FloatArray,
    delay_s: FloatArray | None,
    waited_s: FloatArray | None,
) -> FloatArray:
    """Return when each node ends, (nodes, scenarios); write into `waited_s` how long each waits for its group."""
    count, scenarios = work_s.shape
    end = np.zeros((count + 1, scenarios))
    for level in graph.levels:
        first, stop = level.first, level.stop
        heads = graph.pred_start[first:stop]
        preds = graph.preds[heads[0] : graph.pred_start[stop]]
        start = np.maximum.reduceat(end[preds], heads - heads[0], axis=0)
        if delay_s is not None:
            start += delay_s[first:stop]
        if level.groups.size:
            members = start[level.grouped - first :]
            sizes = np.diff(level.groups, append=members.shape[0])
            arrived = np.repeat(np.maximum.reduceat(members, level.groups, axis=0), sizes, axis=0)
            if waited_s is not None:
                waited_s[level.grouped : stop] = arrived - members
            start[level.grouped - first :] = arrived
        np.add(start, work_s[first:stop], out=end[first:stop])
    return end[:count]


def _longest(graph: OperationGraph, end_s: FloatArray) -> FloatArray:
    order = graph.last[np.argsort(graph.step[graph.last], kind="stable")]
    heads = np.searchsorted(graph.step[order], np.arange(graph.step_numbers.size))
    return np.asarray(np.maximum.reduceat(end_s[order], heads, axis=0), dtype=np.float64)


def replay_scenarios(
    graph: OperationGraph,
    amounts_s: FloatArray,
    scenarios: FloatArray,
    delay_s: FloatArray | None = None,
    is_delay: tuple[bool, ...] = (),
) -> FloatArray:
    """Return the time of each step in each scenario, (steps, scenarios), seconds.

    Args:
        graph: The operations.
        amounts_s: Seconds of each cause in each node, (nodes, causes); may be negative.
        scenarios: 1 where a cause is taken out, (causes, scenarios).
        delay_s: Seconds by which each node starts late, (nodes,); None for no delays.
        is_delay: Of each cause whether its seconds are of the delays, not of the work.
    """
    at_once = max(MAX_NUMBERS // max(graph.work_s.size, 1), 1)
    of_delay = np.array(is_delay or (False,) * amounts_s.shape[1], dtype=np.bool_)
    of_work_s = amounts_s[:, ~of_delay] if of_delay.any() else amounts_s
    late_s = amounts_s[:, of_delay]
    parts = []
    for low in range(0, scenarios.shape[1], at_once):
        chosen = scenarios[:, low : low + at_once]
        work = of_work_s @ chosen[~of_delay]
        np.subtract(graph.work_s[:, None], work, out=work)
        np.maximum(work, 0.0, out=work)
        delay = None if delay_s is None else delay_s[:, None] - late_s @ chosen[of_delay]
        parts.append(replay_operations(graph, work, delay))
    return np.concatenate(parts, axis=1)
