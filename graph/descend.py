"""Descend from slow operations to what the threads went through: seconds of each cause in each operation.

    excess of an operation = its work - the median of the same slot in healthy steps
                           = foreign by process + own + idle + running + blocked + unknown + rest

Owns the split only; whether a cause matters is for replay and score. Every part is measured against its own healthy
median, so what was always there is nobody's fault.

Source:
    Method C6, on the states of the main thread; transfers by the other threads of each member.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rootwalk.graph.columns import FloatArray, IntArray, JobData, ThreadState
from rootwalk.graph.contenders import ProcessShares, own_pids, process_names, process_shares
from rootwalk.graph.reasons import MONITOR_NAMES, Reason
from rootwalk.graph.series import median_rows, scatter_sum
from rootwalk.graph.steps import OpKind, StepGraph

# With fewer ranks than this the healthiest peer is the reference: a median of two halves the effect (method C9).
MIN_MEDIAN_PEERS = 4
# A slot seen in fewer healthy steps has no reference of its own.
MIN_REFERENCE_STEPS = 3
# Up to this part of the time behind strangers, longer queues among a rank's own threads are theirs too: the threads
# have as much to do as before and half of the core to do it on. Measured 0.02 to 0.04 with one stranger on the core.
MAX_FOLLOWING_RATIO = 0.1


@dataclass(frozen=True, slots=True, order=True)
class CauseKey:
    """Who and what: `rank` is None when no single rank is to blame, `pid` when no process is known."""

    reason: str
    rank: int | None
    pid: int | None

    def sort_key(self) -> tuple[str, int, int]:
        """Return a key in which None sorts first."""
        return (
            self.reason,
            -1 if self.rank is None else self.rank,
            -1 if self.pid is None else self.pid,
        )


@dataclass(slots=True)
class Amounts:
    """Seconds by cause and node while they are collected."""

    nodes: dict[CauseKey, list[IntArray]] = field(default_factory=dict)
    values: dict[CauseKey, list[FloatArray]] = field(default_factory=dict)

    def add(self, key: CauseKey, nodes: IntArray, values: FloatArray) -> None:
        """Charge seconds in some operations to a cause."""
        kept = values != 0.0
        if kept.any():
            self.nodes.setdefault(key, []).append(nodes[kept])
            self.values.setdefault(key, []).append(values[kept])

    def total_s(self, key: CauseKey) -> float:
        """Return the seconds of one cause in all operations."""
        return float(sum(part.sum() for part in self.values[key]))

    def column(self, key: CauseKey, node_count: int) -> FloatArray:
        """Return the seconds of one cause in each operation, (nodes,)."""
        column = np.zeros(node_count)
        for nodes, values in zip(self.nodes[key], self.values[key], strict=True):
            np.add.at(column, nodes, values)
        return column


@dataclass(frozen=True, slots=True)
class Descent:
    """The window's excess: by cause, and as a whole per operation, (nodes,), seconds."""

    amounts: Amounts
    excess_s: FloatArray


@dataclass(frozen=True, slots=True)
class _Measured:
    """Slots and regions of one graph as (things, steps) arrays."""

    slot_s: FloatArray
    region_s: FloatArray
    states: FloatArray
    foreign_s: FloatArray


def descend(data: JobData, history: StepGraph | None, window: StepGraph) -> Descent:
    """Return what the window's operations cost above their references, split into causes.

    Args:
        data: Telemetry on the aligned clock.
        history: Graph of healthy steps with the same keys; None compares ranks with each other.
        window: Graph of the steps in question.
    """
    keys = window.keys
    shape = (len(keys.slots), len(keys.regions))
    now = _measure(data, window, shape)
    before = None if history is None else _measure(data, history, shape)
    slot_ref = _reference(before.slot_s if before else None, now.slot_s, _slot_peers(window))
    slot_excess = np.nan_to_num(now.slot_s - slot_ref[:, None])
    state_excess = _state_excess(before, now, window)
    region_ref = _reference(
        before.region_s if before else None, now.region_s, _region_peers(window)
    )
    unknown = np.isnan(now.states[:, :, ThreadState.RUNNING])
    unknown_s = np.where(unknown, np.nan_to_num(now.region_s - region_ref[:, None]), 0.0)
    amounts = Amounts()
    spread = _Spread(window, slot_excess, now.slot_s)
    history_steps = history.step_numbers if history is not None else ()
    shares = _shares(data, history_steps, window)
    _charge_states(data, window, spread, state_excess, unknown_s, shares, amounts)
    _charge_transfers(before, now, window, slot_excess, shares, data, amounts)
    excess = np.zeros(window.kind.size)
    placed = np.flatnonzero(window.slot >= 0)
    slots, steps = window.slot[placed], window.step[placed]
    excess[placed] = slot_excess[slots, steps] * spread.part_of_slot[placed]
    return Descent(amounts, excess)


def _measure(data: JobData, graph: StepGraph, shape: tuple[int, int]) -> _Measured:
    slots, regions = shape
    steps = len(graph.step_numbers)
    work = np.flatnonzero((graph.kind == OpKind.EXEC) | (graph.kind == OpKind.COLLECTIVE))
    slot_s = scatter_sum(graph.slot[work], graph.step[work], graph.work_s[work], (slots, steps))
    table = graph.regions
    length = table.end_s - table.start_s - table.wait_s
    region_s = scatter_sum(table.region, table.step, length, (regions, steps))
    states = np.full((regions, steps, len(ThreadState)), np.nan)
    values = table.states.copy()
    # Blocked time that was not a wait, as the remainder: then the parts add up to the work exactly.
    values[:, ThreadState.BLOCKED] = length - values[:, : ThreadState.BLOCKED].sum(axis=1)
    states[table.region, table.step] = values
    calls = np.flatnonzero(graph.row >= 0)
    foreign = _transfer_foreign(data, graph, calls)
    foreign_s = scatter_sum(graph.slot[calls], graph.step[calls], foreign, (slots, steps))
    return _Measured(slot_s, region_s, states, foreign_s)


def _transfer_foreign(data: JobData, graph: StepGraph, calls: IntArray) -> FloatArray:
    """Return how long each member's other threads stood behind strangers in the transfer: its part of the call's."""
    foreign = np.nan_to_num(data.collectives.foreign_s[graph.row[calls]])
    duration = graph.op_end_s[calls] - graph.op_start_s[calls]
    part = np.minimum(graph.work_s[calls] / np.maximum(duration, 1e-9), 1.0)
    return np.minimum(foreign * part, graph.work_s[calls])


def _reference(
    before: FloatArray | None, now: FloatArray, peers: dict[int, list[int]]
) -> FloatArray:
    """Return the healthy seconds of each thing: its own history, else its peers, else itself."""
    own = median_rows(now)
    if before is not None:
        reference = median_rows(before)
        reference[(~np.isnan(before)).sum(axis=1) < MIN_REFERENCE_STEPS] = np.nan
        return np.where(np.isnan(reference), own, reference)
    result = own.copy()
    for thing, others in peers.items():
        values = own[others]
        values = values[~np.isnan(values)]
        if values.size:
            few = values.size < MIN_MEDIAN_PEERS
            result[thing] = values.min() if few else np.median(values)
    return result


def _region_peers(graph: StepGraph) -> dict[int, list[int]]:
    """Return for each region the same region of all ranks."""
    by_name: dict[tuple[str, int], list[int]] = {}
    for (_, name, ordinal), number in graph.keys.regions.items():
        by_name.setdefault((name, ordinal), []).append(number)
    return {
        number: by_name[(name, ordinal)]
        for (_, name, ordinal), number in graph.keys.regions.items()
    }


def _slot_peers(graph: StepGraph) -> dict[int, list[int]]:
    """Return for each slot the same slot of all ranks."""
    names = {number: key[1:] for key, number in graph.keys.regions.items()}
    by_name: dict[tuple[tuple[str, int], int, bool], list[int]] = {}
    for (region, position, is_collective), number in graph.keys.slots.items():
        by_name.setdefault((names[region], position, is_collective), []).append(number)
    return {
        number: by_name[(names[region], position, is_collective)]
        for (region, position, is_collective), number in graph.keys.slots.items()
    }


def _state_excess(before: _Measured | None, now: _Measured, window: StepGraph) -> FloatArray:
    """Return the excess of each state, (regions, steps, states), 0 where the states are unknown."""
    columns = []
    peers = _region_peers(window)
    for state in ThreadState:
        own = before.states[:, :, state] if before is not None else None
        reference = _reference(own, now.states[:, :, state], peers)
        columns.append(np.nan_to_num(now.states[:, :, state] - reference[:, None]))
    return np.stack(columns, axis=2)


class _Spread:
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


def _shares(
    data: JobData, history_steps: tuple[int, ...], window: StepGraph
) -> dict[int, ProcessShares]:
    own = own_pids(data)
    return {
        rank: process_shares(data, rank, own.get(rank, {0}), history_steps, window.step_numbers)
        for rank in window.lane_end
    }


def _monitor_pids(data: JobData) -> frozenset[int]:
    names = process_names(data).names
    return frozenset(pid for pid, name in names.items() if name.startswith(MONITOR_NAMES))


def _contention_key(monitors: frozenset[int], rank: int, pid: int | None) -> CauseKey:
    return CauseKey(Reason.MONITOR_SELF if pid in monitors else Reason.CPU_CONTENTION, rank, pid)


def _charge_states(
    data: JobData,
    window: StepGraph,
    spread: _Spread,
    excess: FloatArray,
    unknown_s: FloatArray,
    shares: dict[int, ProcessShares],
    amounts: Amounts,
) -> None:
    rank_of_region = np.array([key[0] for key in window.keys.regions], dtype=np.int64)
    loader_s = _loader_excess(data, window, excess)
    monitors = _monitor_pids(data)
    foreign = np.maximum(excess[:, :, ThreadState.FOREIGN], 0.0) + loader_s
    rank_of_node = window.rank[spread.nodes]
    own = excess[:, :, ThreadState.OWN].copy()
    _follow_strangers(foreign, own, rank_of_region)
    foreign_nodes = spread.place(foreign)
    single = {
        Reason.THREAD_OVERSUBSCRIPTION: spread.place(own),
        Reason.CPU_QUOTA: spread.place(excess[:, :, ThreadState.IDLE]),
    }
    for rank in sorted(window.lane_end):
        mine = rank_of_node == rank
        nodes, steps = spread.nodes[mine], spread.step_of_node[mine]
        for pid, share in zip(shares[rank].pids, shares[rank].shares, strict=True):
            amounts.add(
                _contention_key(monitors, rank, pid), nodes, foreign_nodes[mine] * share[steps]
            )
        for reason, seconds in single.items():
            amounts.add(CauseKey(reason, rank, None), nodes, seconds[mine])
    lost = (
        excess[:, :, ThreadState.BLOCKED] - loader_s + excess[:, :, ThreadState.UNSPLIT] + unknown_s
    )
    several = len(window.lane_end) > 1
    running = excess[:, :, ThreadState.RUNNING]
    for own_reason, region_s, common in (
        (Reason.WORK_IMBALANCE, running, True),
        (Reason.UNKNOWN_HOST, lost, several),
    ):
        _charge_common(window, spread, rank_of_region, region_s, own_reason, common, amounts)


def _follow_strangers(foreign_s: FloatArray, own_s: FloatArray, rank_of_region: IntArray) -> None:
    """Move a rank's excess behind its own threads to the strangers' where it follows from theirs; in place."""
    for rank in set(rank_of_region.tolist()):
        mine = rank_of_region == rank
        own_total_s = float(own_s[mine].sum())
        if 0.0 < own_total_s <= MAX_FOLLOWING_RATIO * float(foreign_s[mine].sum()):
            foreign_s[mine] += own_s[mine]
            own_s[mine] = 0.0


def _charge_common(
    window: StepGraph,
    spread: _Spread,
    rank_of_region: IntArray,
    region_s: FloatArray,
    own_reason: Reason,
    may_be_common: bool,
    amounts: Amounts,
) -> None:
    """Charge what all ranks have in common to GLOBAL_SLOW and each rank's remainder to the rank."""
    total = np.bincount(rank_of_region, region_s.sum(axis=1), int(rank_of_region.max()) + 1)
    ranks = sorted(window.lane_end)
    common_s = max(min(float(total[rank]) for rank in ranks), 0.0) if may_be_common else 0.0
    seconds = spread.place(region_s)
    rank_of_node = window.rank[spread.nodes]
    for rank in ranks:
        mine = rank_of_node == rank
        part = common_s / float(total[rank]) if total[rank] > 0.0 else 0.0
        nodes = spread.nodes[mine]
        amounts.add(CauseKey(Reason.GLOBAL_SLOW, None, None), nodes, seconds[mine] * part)
        amounts.add(CauseKey(own_reason, rank, None), nodes, seconds[mine] * (1.0 - part))


def _loader_excess(data: JobData, window: StepGraph, excess: FloatArray) -> FloatArray:
    """Return blocked excess in data_load during which the rank's loader workers were runnable."""
    table = window.regions
    result = np.zeros(excess.shape[:2])
    names = {number: key for key, number in window.keys.regions.items()}
    stalls: dict[tuple[int, int], list[tuple[float, float]]] = {}
    position = {step: index for index, step in enumerate(window.step_numbers)}
    for stall in data.stalls:
        index = position.get(stall.step)
        if stall.role == "loader_worker" and stall.state == "runnable" and index is not None:
            stalls.setdefault((stall.rank, index), []).append((stall.start_s, stall.end_s))
    if not stalls:
        return result
    for region, step, low, high in zip(
        table.region.tolist(), table.step.tolist(), table.start_s, table.end_s, strict=True
    ):
        rank, name, _ = names[region]
        intervals = stalls.get((rank, step), [])
        if name == "data_load" and intervals:
            covered_s = _union_s(intervals, float(low), float(high))
            blocked_s = max(float(excess[region, step, ThreadState.BLOCKED]), 0.0)
            result[region, step] = min(covered_s, blocked_s)
    return result


def _union_s(intervals: list[tuple[float, float]], low: float, high: float) -> float:
    """Return how many seconds of [low, high) at least one interval covers."""
    total, reached = 0.0, low
    for start, end in sorted(intervals):
        start, end = max(start, reached), min(end, high)
        if end > start:
            total += end - start
            reached = end
    return total


def _charge_transfers(
    before: _Measured | None,
    now: _Measured,
    window: StepGraph,
    slot_excess: FloatArray,
    shares: dict[int, ProcessShares],
    data: JobData,
    amounts: Amounts,
) -> None:
    """Charge slower transfers to the members whose other threads stood behind other processes."""
    reference = _reference(
        before.foreign_s if before is not None else None, now.foreign_s, _slot_peers(window)
    )
    monitors = _monitor_pids(data)
    foreign_excess = np.maximum(np.nan_to_num(now.foreign_s - reference[:, None]), 0.0)
    for group in window.groups:
        nodes = group.members
        slots, step = window.slot[nodes], int(window.step[nodes[0]])
        slow = slot_excess[slots, window.step[nodes]]
        behind = foreign_excess[slots, window.step[nodes]]
        total = float(behind.sum())
        explained = np.minimum(np.maximum(slow, 0.0), total)
        for index in np.flatnonzero(behind > 0.0).tolist():
            rank = int(window.rank[nodes[index]])
            mine = explained * float(behind[index]) / total
            for pid, share in zip(shares[rank].pids, shares[rank].shares, strict=True):
                amounts.add(_contention_key(monitors, rank, pid), nodes, mine * float(share[step]))
        amounts.add(CauseKey(Reason.UNKNOWN_NET, None, None), nodes, slow - explained)
