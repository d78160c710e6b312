"""Waits for input that a profile shows: data_load while the device had nothing to do.

    main thread   |------ data_load ------|-- forward ...
    device        |## busy ##|    idle    |## busy ...
                             |<- a wait ->|

A profile alone is judged against itself without these waits: no peer and no history is needed to see them. Whether
CPU or files took the time it seldom tells: only a process without loader workers shows its operators.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rootwalk.graph.columns import FloatArray, InputWait, PhaseRows, ThreadState
from rootwalk.graph.reasons import Reason
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingPhase

if TYPE_CHECKING:
    from rootwalk.graph.measures import Excess, Measured
    from rootwalk.graph.steps import StepGraph

__all__ = [
    "MIN_STEPS",
    "PROFILE_SCOPE",
    "add_inputs",
    "input_reasons",
    "is_of_profile",
    "mean_seconds",
    "read_inputs",
    "waits_of_phases",
]

# Instrumentation scope of spans that were made from a profile.
PROFILE_SCOPE: Final = "rootwalk.importers.kineto"
# Profiles have few steps: three are the usual schedule, and a wait is measured in each.
MIN_STEPS: Final = 3
# Where operators were this part of the loading, CPU work is the best guess for the rest: decoding is around them.
MIN_OPERATOR_RATIO: Final = 0.2
_NS: Final = 1e9


def read_inputs(
    connection: Any, job: str, attempt: int, steps: tuple[int, int]
) -> tuple[InputWait, ...]:
    """Return the data loading of profiles whose device times are known, steps first to last; none of a live job."""
    told = (
        semconv.TRAINING_DEVICE_BUSY_TIME,
        semconv.TRAINING_OPERATOR_TIME,
        semconv.TRAINING_LOADER_IS_OWN,
    )
    rows = connection.execute(
        "SELECT rank, step, end_unix_ns - start_unix_ns, TRY_CAST(attributes ->> ? AS DOUBLE),"
        " TRY_CAST(attributes ->> ? AS DOUBLE), (attributes ->> ?) = 'true' FROM spans"
        " WHERE scope_name = ? AND name = ? AND job = ? AND coalesce(attempt, 0) = ? AND rank IS NOT NULL"
        " AND step BETWEEN ? AND ? ORDER BY rank, step, start_unix_ns, span_id",
        [
            *(f'$."{key}"' for key in told),
            PROFILE_SCOPE,
            TrainingPhase.DATA_LOAD.value,
            job,
            attempt,
            *steps,
        ],
    ).fetchall()
    waits: list[InputWait] = []
    place: tuple[int, int] | None = None
    ordinal = 0
    for rank, step, duration_ns, busy_s, operator_s, is_own in rows:
        ordinal = ordinal + 1 if place == (rank, step) else 0
        place = (rank, step)
        if duration_ns is not None and duration_ns >= 0 and busy_s is not None:
            length_s = duration_ns / _NS
            idle_s = max(length_s - busy_s, 0.0)
            measured = (length_s, idle_s, operator_s or 0.0, bool(is_own))
            waits.append(InputWait(int(rank), int(step), ordinal, *measured))
    return tuple(waits)


def is_of_profile(inputs: tuple[InputWait, ...]) -> bool:
    """Return whether waits for input were read from a profile."""
    return bool(inputs) and not inputs[0].is_live


def waits_of_phases(phases: PhaseRows) -> tuple[InputWait, ...]:
    """Return the data loading of a live job: how long main threads were blocked in it for no reason that is seen.

    Args:
        phases: Those that were read; phases whose threads nobody watched tell nothing.
    """
    waits: list[InputWait] = []
    counts: dict[tuple[int, int], int] = {}
    length_s = phases.end_s - phases.start_s
    for row in np.lexsort((phases.start_s, phases.step, phases.rank)).tolist():
        if phases.phase[row] != TrainingPhase.DATA_LOAD:
            continue
        place = (int(phases.rank[row]), int(phases.step[row]))
        ordinal = counts[place] = counts.get(place, -1) + 1
        others = [state for state in ThreadState if state is not ThreadState.BLOCKED]
        known_s = phases.states[row, others]
        if np.isnan(phases.states[row, ThreadState.RUNNING]):
            continue
        idle_s = max(float(length_s[row]) - float(np.nansum(known_s)), 0.0)
        waits.append(InputWait(*place, ordinal, float(length_s[row]), idle_s, 0.0, False, True))
    return tuple(waits)


def input_reasons(
    inputs: tuple[InputWait, ...], steps: tuple[int, ...]
) -> dict[int, tuple[Reason, float]]:
    """Return by rank what its waits for input speak for, and how much of the loading says so."""
    chosen = set(steps)
    result: dict[int, tuple[Reason, float]] = {}
    for rank in sorted({wait.rank for wait in inputs}):
        own = [wait for wait in inputs if wait.rank == rank and wait.step in chosen]
        length_s = sum(wait.length_s for wait in own)
        ratio = min(sum(wait.operator_s for wait in own) / length_s, 1.0) if length_s else 0.0
        is_seen = bool(own) and all(wait.is_own_loader for wait in own)
        if is_seen and ratio >= MIN_OPERATOR_RATIO:
            result[rank] = (Reason.DATALOADER_CPU, ratio)
        else:
            result[rank] = (Reason.UNKNOWN_HOST, ratio)
    return result


def mean_seconds(
    inputs: tuple[InputWait, ...], rank: int | None, steps: tuple[int, ...]
) -> tuple[float, float, float]:
    """Return seconds per step of loading, of the device's idleness in it, and of operators in it.

    Args:
        inputs: Those of the job.
        rank: One rank, or None for the mean of those that are told.
        steps: Numbers of the steps.
    """
    chosen = set(steps)
    own = [w for w in inputs if w.step in chosen and rank in (None, w.rank)]
    count = max(len(steps) * len({w.rank for w in own}), 1)
    return (
        sum(w.length_s for w in own) / count,
        sum(w.idle_s for w in own) / count,
        sum(w.operator_s for w in own) / count,
    )


def add_inputs(
    excess: Excess,
    now: Measured,
    window: StepGraph,
    inputs: tuple[InputWait, ...],
    *,
    is_alone: bool,
) -> Excess:
    """Return the excess with waits for input in full, whatever peers waited.

    Args:
        excess: Against the peers.
        now: The window.
        window: Its graph.
        inputs: Waits for input.
        is_alone: Whether there is nothing else to compare with: then nothing else is excess.
    """
    idle_s = _by_region(window, inputs)
    is_known = ~np.isnan(idle_s)
    keep = np.zeros_like(is_known) if is_alone else ~is_known
    region_of_slot = np.zeros(len(window.keys.slots), dtype=np.int64)
    is_lane = np.zeros(len(window.keys.slots), dtype=np.bool_)
    for (region, _, is_collective), slot in window.keys.slots.items():
        region_of_slot[slot], is_lane[slot] = region, not is_collective
    work_s = np.nan_to_num(now.slot_s) * is_lane[:, None]
    total_s = np.zeros(idle_s.shape)
    np.add.at(total_s, region_of_slot, work_s)
    idle_s = np.minimum(np.nan_to_num(idle_s), total_s)
    part = idle_s / np.maximum(total_s, 1e-12)
    is_kept = keep[region_of_slot]
    if not is_alone:
        is_kept = is_kept | ~is_lane[:, None]
    by_rank = input_reasons(inputs, window.step_numbers)
    ranks = np.array([key[0] for key in window.keys.regions], dtype=np.int64)
    input_s: dict[Reason, FloatArray] = {}
    for rank, (reason, _) in by_rank.items():
        seconds = input_s.setdefault(reason, np.zeros(idle_s.shape))
        seconds[ranks == rank] = idle_s[ranks == rank]
    return replace(
        excess,
        slot_s=np.where(is_kept, excess.slot_s, work_s * part[region_of_slot]),
        states=excess.states * keep[:, :, None],
        unknown_s=excess.unknown_s * keep,
        behind_s={
            kind: np.zeros_like(seconds) if is_alone else seconds
            for kind, seconds in excess.behind_s.items()
        },
        input_s=input_s,
    )


def _by_region(window: StepGraph, inputs: tuple[InputWait, ...]) -> FloatArray:
    """Return the waits by region and step, NaN where none is told."""
    result = np.full((len(window.keys.regions), len(window.step_numbers)), np.nan)
    position = {number: index for index, number in enumerate(window.step_numbers)}
    for wait in inputs:
        region = window.keys.regions.get((wait.rank, TrainingPhase.DATA_LOAD.value, wait.ordinal))
        if region is not None and wait.step in position:
            result[region, position[wait.step]] = wait.idle_s
    return result
