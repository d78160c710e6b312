"""What a rank's loader workers did while its threads waited: decoded more than before, or were kept from it.

    main thread   |~~~~~~~~~~~ blocked in data_load ~~~~~~~~~~~|
    worker        |---- runs ----|-- runnable --|---- runs ----|
                   LOADER         held up: behind whom?

Seconds in which a worker ran are the decoding's only as far as the workers' CPU time grew: a worker that does what it
always did, and later, was made late by somebody. Owns these bounds; charges nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray, IntArray, JobData, StallRow, StepRows
from rootwalk.graph.measures import Behind
from rootwalk.graph.steps import StepGraph

LOADER_ROLE = "loader_worker"
MAIN_ROLE = "main"
DATA_LOAD = "data_load"
_RUNNABLE = "runnable"
_KIND_OF_AGGRESSOR = {"own": Behind.OWN, "idle": Behind.IDLE}
# Input that its own process waits for takes CPU time as well: up to this part of the wait.
_READING_RATIO = 0.25
# Whoever keeps a worker from its CPU comes before the rank's own threads, which are there anyway.
_HOLD_UP_ORDER = (Behind.FOREIGN, Behind.IDLE, Behind.OWN)


@dataclass(frozen=True, slots=True)
class HeldUp:
    """Main thread blocked in data_load while loader workers were runnable, (regions, steps), seconds above history.

    `delay_s` is by rank and kind: how much longer than before the workers stood runnable in the window as a whole.
    """

    covered_s: dict[Behind, FloatArray]
    delay_s: dict[int, dict[Behind, float]]


def worker_stalls(data: JobData) -> list[StallRow]:
    """Return the times in which loader workers stood runnable."""
    return [s for s in data.stalls if s.role == LOADER_ROLE and s.state == _RUNNABLE]


def kind_of_stall(stall: StallRow) -> Behind:
    """Return what ran while a thread stood runnable; kernel threads count as strangers."""
    return _KIND_OF_AGGRESSOR.get(stall.aggressor_kind or "", Behind.FOREIGN)


def held_up(
    data: JobData,
    history_steps: tuple[int, ...],
    window: StepGraph,
    blocked_excess_s: FloatArray,
) -> HeldUp:
    """Return how long each rank's main thread waited for workers that could not run.

    Args:
        data: Telemetry on the aligned clock.
        history_steps: Healthy steps; what stood in the workers' way there is not excess.
        window: Graph of the steps in question.
        blocked_excess_s: (regions, steps); bounds what the workers' stalls can explain.
    """
    stalls = worker_stalls(data)
    covered = {kind: np.zeros(blocked_excess_s.shape) for kind in Behind}
    if not stalls:
        return HeldUp(covered, {})
    position = {step: index for index, step in enumerate(window.step_numbers)}
    by_place: dict[tuple[int, int, Behind], list[tuple[float, float]]] = {}
    for stall in stalls:
        index = position.get(stall.step)
        if index is not None:
            place = (stall.rank, index, kind_of_stall(stall))
            by_place.setdefault(place, []).append((stall.start_s, stall.end_s))
    names = {number: key for key, number in window.keys.regions.items()}
    table = window.regions
    for region, step, low, high in zip(
        table.region.tolist(), table.step.tolist(), table.start_s, table.end_s, strict=True
    ):
        rank, name, _ = names[region]
        left_s = max(float(blocked_excess_s[region, step]), 0.0)
        for kind in _HOLD_UP_ORDER if name == DATA_LOAD else ():
            intervals = by_place.get((rank, step, kind), [])
            seconds = min(union_s(intervals, float(low), float(high)), left_s)
            covered[kind][region, step] = seconds
            left_s -= seconds
    return HeldUp(covered, delays(stalls, set(history_steps), set(position)))


def delays(
    stalls: list[StallRow], history: set[int], window: set[int]
) -> dict[int, dict[Behind, float]]:
    """Return by rank and kind how much longer the workers stood runnable than in as many healthy steps."""
    during: dict[tuple[int, Behind], float] = {}
    before: dict[tuple[int, Behind], float] = {}
    for stall in stalls:
        key = (stall.rank, kind_of_stall(stall))
        for steps, sums in ((window, during), (history, before)):
            if stall.step in steps:
                sums[key] = sums.get(key, 0.0) + stall.end_s - stall.start_s
    result: dict[int, dict[Behind, float]] = {}
    for (rank, kind), total_s in sorted(during.items()):
        usual_s = before.get((rank, kind), 0.0) / max(len(history), 1) * len(window)
        result.setdefault(rank, {})[kind] = max(total_s - usual_s, 0.0)
    return result


def grown_s(
    steps: StepRows,
    column: FloatArray,
    history_steps: tuple[int, ...],
    window_steps: tuple[int, ...],
    *,
    is_lost: bool = False,
) -> dict[int, float]:
    """Return by rank how much a measurement of whole steps grew in the window, in seconds over all its steps.

    Args:
        steps: Whose rows `column` belongs to.
        column: Seconds per row, NaN unknown.
        history_steps: Healthy steps; none compares with the healthiest rank.
        window_steps: Steps in question.
        is_lost: Whether it is time that no step needs: without healthy steps all of it has grown.

    Returns:
        Ranks of which the window or the reference is not known are missing.
    """
    is_known = ~np.isnan(column)
    inside = is_known & np.isin(steps.step, window_steps)
    before = is_known & np.isin(steps.step, history_steps)
    mean_s = {
        int(rank): float(column[inside & (steps.rank == rank)].mean())
        for rank in np.unique(steps.rank[inside])
    }
    usual_s: dict[int, float] = {}
    if history_steps:
        for rank in np.unique(steps.rank[before]):
            usual_s[int(rank)] = float(np.median(column[before & (steps.rank == rank)]))
    elif mean_s:
        usual_s = dict.fromkeys(mean_s, 0.0 if is_lost else min(mean_s.values()))
    return {
        rank: (value - usual_s[rank]) * len(window_steps)
        for rank, value in mean_s.items()
        if rank in usual_s
    }


def behind_children_ratio(data: JobData, window_steps: tuple[int, ...]) -> dict[int, float]:
    """Return by rank which part of its main thread's time behind its own was behind its child processes.

    Stalls of 1 ms or more name them; a rank without such a stall is missing. Threads of the transfers stand behind the
    main thread in every job: how they queue follows from it.
    """
    pid_by_rank = {row.rank: row.pid for row in data.ranks}
    inside = set(window_steps)
    children: dict[int, float] = {}
    total: dict[int, float] = {}
    for stall in data.stalls:
        is_own = stall.state == _RUNNABLE and kind_of_stall(stall) is Behind.OWN
        if not is_own or stall.role != MAIN_ROLE or stall.step not in inside:
            continue
        pid = stall.aggressor_pid
        total[stall.rank] = total.get(stall.rank, 0.0) + stall.end_s - stall.start_s
        if pid is not None and pid != pid_by_rank.get(stall.rank):
            children[stall.rank] = children.get(stall.rank, 0.0) + stall.end_s - stall.start_s
    return {rank: children.get(rank, 0.0) / s for rank, s in total.items() if s > 0.0}


def worker_pids(data: JobData, rank: int) -> tuple[int, ...]:
    """Return the loader workers of a rank that stalls name, in order."""
    return tuple(
        sorted(
            {
                stall.thread_id
                for stall in data.stalls
                if stall.rank == rank and stall.role == LOADER_ROLE and stall.thread_id is not None
            }
        )
    )


def is_loading(window: StepGraph) -> BoolArray:
    """Return which regions load data, (regions,)."""
    return np.array([name == DATA_LOAD for _, name, _ in window.keys.regions], dtype=np.bool_)


def loader_share(
    excess_s: FloatArray, rank_of_region: IntArray, budget_s: dict[int, float]
) -> dict[int, float]:
    """Return by rank which part of some excess the workers' own growth explains, and take it off the budget; in place.

    Args:
        excess_s: (regions, steps).
        rank_of_region: Rank of each region.
        budget_s: By rank, the growth that is not yet used.
    """
    result: dict[int, float] = {}
    for rank, left_s in budget_s.items():
        total_s = float(excess_s[rank_of_region == rank].sum())
        if total_s > 0.0 and left_s > 0.0:
            used_s = min(total_s, left_s)
            result[rank] = used_s / total_s
            budget_s[rank] = left_s - used_s
    return result


def union_s(intervals: list[tuple[float, float]], low: float, high: float) -> float:
    """Return how many seconds of [low, high) at least one interval covers."""
    total, reached = 0.0, low
    for start, end in sorted(intervals):
        start, end = max(start, reached), min(end, high)
        if end > start:
            total += end - start
            reached = end
    return total


def times_there(window: StepGraph, regions: int) -> IntArray:
    """Return in how many steps each of so many regions is: what comes now and then, as a new epoch, is in few."""
    return np.bincount(window.regions.region, minlength=regions)


def loading_part(
    window: StepGraph, excess_s: FloatArray, usual_s: FloatArray, rank_of_region: IntArray
) -> FloatArray:
    """Return which part of each region's running excess is the input's, (regions, 1).

    A rank that runs everything longer in the same ratio loads its data no differently from before.

    Args:
        window: Graph of the steps in question.
        excess_s: How much longer its regions ran, (regions, steps).
        usual_s: What they run in a healthy step, (regions,).
        rank_of_region: Whose they are.
    """
    loading = is_loading(window)
    result = np.zeros((loading.size, 1))
    usual_s = usual_s * times_there(window, usual_s.size)
    for rank in sorted(window.lane_end):
        mine = rank_of_region == rank
        inside, outside = mine & loading, mine & ~loading
        inside_s, outside_s = float(excess_s[inside].sum()), float(excess_s[outside].sum())
        ratio = max(outside_s, 0.0) / max(float(usual_s[outside].sum()), 1e-9)
        alike_s = ratio * float(usual_s[inside].sum())
        if inside_s > 0.0:
            result[inside] = max(1.0 - alike_s / inside_s, 0.0)
    return result


def reading_s(
    window: StepGraph, running_s: FloatArray, blocked_s: FloatArray, rank_of_region: IntArray
) -> FloatArray:
    """Return how much longer a main thread ran in its input because it waits for it: reading, not decoding.

    Args:
        window: Graph of the steps in question.
        running_s: How much longer its regions ran in their input, (regions, steps).
        blocked_s: How much longer they were blocked on files, or nobody knows by what, (regions, steps).
        rank_of_region: Whose they are.
    """
    loading = is_loading(window)
    result = np.zeros_like(running_s)
    for rank in sorted(window.lane_end):
        inside = loading & (rank_of_region == rank)
        waited_s = float(blocked_s[inside].sum())
        if 0.0 < float(running_s[inside].sum()) <= _READING_RATIO * waited_s:
            result[inside] = running_s[inside]
    return result
