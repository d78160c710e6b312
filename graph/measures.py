"""Measure one graph by slot and region, and find how far a window lies above its references.

    excess of a thing in a step = its seconds - the median of the same thing in healthy steps (else of its peers)
                                  a phase that is new: as far as it came on top of the others (`new_phases`)

Owns references and excess as (things, steps) arrays, NaN where a thing was absent; charges nobody.

Source:
    Method C5: worker and data parts; few peers give the minimum (method C9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray, IntArray, JobData, ThreadState
from rootwalk.graph.new_phases import MIN_REFERENCE_STEPS, added_parts, is_new_alone
from rootwalk.graph.reasons import Reason
from rootwalk.graph.series import median_rows, scatter_sum
from rootwalk.graph.steps import OpKind, StepGraph
from rootwalk.instrumentation.semconv import TrainingPhase

# With fewer ranks than this the healthiest peer is the reference: a median of two halves the effect (method C9).
MIN_MEDIAN_PEERS = 4
# States that are no part of a step's work, whatever the peers do: without a history their reference is zero.
LOST_STATES = (
    ThreadState.FOREIGN,
    ThreadState.OWN,
    ThreadState.IDLE,
    ThreadState.GC,
    ThreadState.LOADER,
    ThreadState.LOADER_FILES,
    ThreadState.READ,
    ThreadState.WRITE,
    ThreadState.OUTPUT,
    ThreadState.SERVICE,
    ThreadState.STOPPED,
    ThreadState.INTERRUPT,
    ThreadState.RECLAIM,
)


class Behind(StrEnum):
    """What ran while a thread stood runnable."""

    FOREIGN = "foreign"
    OWN = "own"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Measured:
    """Slots and regions of one graph as (things, steps) arrays; `behind_s` is of transfers, by slot."""

    slot_s: FloatArray
    region_s: FloatArray
    states: FloatArray
    behind_s: Mapping[Behind, FloatArray]


@dataclass(frozen=True, slots=True)
class Excess:
    """How far a window lies above its references, seconds.

    `slot_s` is (slots, steps); `states` (regions, steps, states), 0 where a state is unknown; `unknown_s`
    (regions, steps) what no state tells; `usual_states` (regions, states) the references, 0 where unknown;
    `behind_s` as in `Measured`, at least 0; `is_alone` (regions,) says what is new, and not on all ranks;
    `input_s` (regions, steps) waits for input, by what they speak for.
    """

    slot_s: FloatArray
    states: FloatArray
    unknown_s: FloatArray
    usual_states: FloatArray
    behind_s: Mapping[Behind, FloatArray]
    is_alone: BoolArray
    input_s: Mapping[Reason, FloatArray] = field(default_factory=dict)


def measure(data: JobData, graph: StepGraph) -> Measured:
    """Return what each slot and region of a graph took in each step."""
    slots, regions = len(graph.keys.slots), len(graph.keys.regions)
    steps = len(graph.step_numbers)
    work = np.flatnonzero((graph.kind == OpKind.EXEC) | (graph.kind == OpKind.COLLECTIVE))
    slot_s = scatter_sum(graph.slot[work], graph.step[work], graph.work_s[work], (slots, steps))
    table = graph.regions
    length = table.end_s - table.start_s - table.wait_s
    region_s = scatter_sum(table.region, table.step, length, (regions, steps))
    states = np.full((regions, steps, len(ThreadState)), np.nan)
    states[table.region, table.step] = _whole(table.states, length)
    calls = np.flatnonzero(graph.row >= 0)
    rows = data.collectives
    behind_s = {
        kind: scatter_sum(
            graph.slot[calls], graph.step[calls], _in_transfer(graph, calls, column), (slots, steps)
        )
        for kind, column in (
            (Behind.FOREIGN, rows.foreign_s),
            (Behind.OWN, rows.own_s),
            (Behind.IDLE, rows.idle_s),
        )
    }
    return Measured(slot_s, region_s, states, behind_s)


def _whole(recorded: FloatArray, length_s: FloatArray) -> FloatArray:
    """Return states that add up to the work of each region exactly: blocked time that was not a wait is the remainder.

    Where the thread was watched, a producer that told no GC or LOADER time had none.
    """
    values = recorded.copy()
    is_watched = ~np.isnan(values[:, ThreadState.RUNNING])
    for state in (ThreadState.GC, ThreadState.LOADER):
        values[is_watched, state] = np.nan_to_num(values[is_watched, state])
    others = [state for state in ThreadState if state is not ThreadState.BLOCKED]
    values[:, ThreadState.BLOCKED] = length_s - values[:, others].sum(axis=1)
    return values


def _in_transfer(graph: StepGraph, calls: IntArray, recorded_s: FloatArray) -> FloatArray:
    """Return how long each member's other threads waited for a CPU in the transfer: its part of the call's."""
    waited = np.nan_to_num(recorded_s[graph.row[calls]])
    duration = graph.op_end_s[calls] - graph.op_start_s[calls]
    part = np.minimum(graph.work_s[calls] / np.maximum(duration, 1e-9), 1.0)
    return np.minimum(waited * part, graph.work_s[calls])


def find_excess(before: Measured | None, now: Measured, window: StepGraph) -> Excess:
    """Return how far the window lies above its healthy steps, or above its peers where there are none."""
    region_peers, slot_peers = _region_peers(window), _slot_peers(window)
    slot_ref = _reference(before.slot_s if before else None, now.slot_s, slot_peers)
    if before is None:
        region_ref = _reference(None, now.region_s - _lost_s(now, window), region_peers)
        slot_ref = _without_lost(slot_ref, region_ref, window)
    else:
        region_ref = _reference(before.region_s, now.region_s, region_peers)
    usual = np.stack(
        [_state_reference(before, now, region_peers, state) for state in ThreadState], axis=1
    )
    if before is None:
        usual[is_loading(window), ThreadState.BLOCKED] = 0.0
    keys = window.keys
    added = np.zeros(len(keys.regions))
    if before is not None:
        added = added_parts(before.region_s, now.region_s, keys.regions)
        region_ref *= 1.0 - added
        usual *= 1.0 - added[:, None]
        for (region, _, is_collective), slot in keys.slots.items():
            # A collective that healthy steps did not have tells nothing of the network.
            slot_ref[slot] *= 1.0 if is_collective else 1.0 - added[region]
    states = np.nan_to_num(now.states - usual[:, None, :])
    is_unknown = np.isnan(now.states[:, :, ThreadState.RUNNING])
    unseen = np.nan_to_num(now.region_s - region_ref[:, None]) - states[:, :, ThreadState.GC]
    behind_s = {}
    for kind, seconds in now.behind_s.items():
        own = before.behind_s[kind] if before is not None else None
        reference = _reference(own, seconds, slot_peers)
        behind_s[kind] = np.maximum(np.nan_to_num(seconds - reference[:, None]), 0.0)
    return Excess(
        slot_s=np.nan_to_num(now.slot_s - slot_ref[:, None]),
        states=states,
        unknown_s=np.where(is_unknown, unseen, 0.0),
        usual_states=np.nan_to_num(usual),
        behind_s=behind_s,
        is_alone=is_new_alone(added, keys.regions, set(window.lane_end)),
    )


def is_loading(window: StepGraph) -> BoolArray:
    """Return for each region whether it is the loading of input, in which a blocked thread waits for it."""
    result = np.zeros(len(window.keys.regions), dtype=np.bool_)
    for (_, name, _), region in window.keys.regions.items():
        result[region] = name == TrainingPhase.DATA_LOAD
    return result


def _lost_s(now: Measured, window: StepGraph) -> FloatArray:
    """Return how much of each region's time was no work in each step, (regions, steps)."""
    lost_s = np.maximum(np.nan_to_num(now.states[:, :, list(LOST_STATES)]), 0.0).sum(axis=2)
    blocked_s = np.maximum(np.nan_to_num(now.states[:, :, ThreadState.BLOCKED]), 0.0)
    lost_s += blocked_s * is_loading(window)[:, None]
    return np.asarray(np.minimum(lost_s, now.region_s), dtype=np.float64)


def _without_lost(slot_ref: FloatArray, region_ref: FloatArray, window: StepGraph) -> FloatArray:
    """Return the references of slots without what all ranks lose in a region, in proportion."""
    region_of_slot = np.zeros(slot_ref.size, dtype=np.int64)
    is_lane = np.zeros(slot_ref.size, dtype=np.bool_)
    for (region, _, is_collective), slot in window.keys.slots.items():
        region_of_slot[slot], is_lane[slot] = region, not is_collective
    known = np.where(is_lane, np.nan_to_num(slot_ref), 0.0)
    total = np.bincount(region_of_slot, known, region_ref.size)
    part = np.nan_to_num(np.minimum(region_ref / np.maximum(total, 1e-12), 1.0), nan=1.0)
    return np.asarray(np.where(is_lane, slot_ref * part[region_of_slot], slot_ref))


def _state_reference(
    before: Measured | None, now: Measured, peers: dict[int, list[int]], state: ThreadState
) -> FloatArray:
    """Return the healthy seconds of one state in each region.

    A rank that nobody watched in healthy steps, though its regions were there, is compared with its peers.
    """
    window = now.states[:, :, state]
    if before is None:
        if state in LOST_STATES:
            return np.zeros(len(window))
        return _reference(None, window, peers)
    reference = _reference(before.states[:, :, state], window, peers)
    known = (~np.isnan(before.states[:, :, state])).sum(axis=1)
    there = (~np.isnan(before.region_s)).sum(axis=1)
    unwatched = (known < MIN_REFERENCE_STEPS) & (there >= MIN_REFERENCE_STEPS)
    if unwatched.any():
        by_peers = _reference(None, window, peers)
        reference[unwatched] = by_peers[unwatched]
    return reference


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
