"""Compare only like with like: what a thread waited for is told of more waits at some levels of detail than at others.

    level 0, /proc   |------------- blocked -------------|
    level 1, 2       |----- blocked -----|-- file_read --|      beside the first: waits that seem to have begun

Where the steps of one question differ, healthy ones that differ from those in question are left out if enough others
remain; else the waits go back into the blocked time of all. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from rootwalk.graph.columns import (
    STATE_OF_WAIT,
    BoolArray,
    FloatArray,
    IntArray,
    JobData,
    PhaseRows,
    StepRows,
    ThreadState,
)

__all__ = ["TOLD_STATES", "even_waits"]

# What only a level above 0 divides. Reclaim is told by a reader of its own, at every level.
TOLD_STATES: Final = (
    ThreadState.LOADER_FILES,
    *sorted(set(STATE_OF_WAIT.values()) - {ThreadState.RECLAIM}),
)
# So many healthy steps of a rank are a history.
MIN_TOLD_STEPS: Final = 5
# Less than any length from which on waits are told.
UNTOLD: Final = -1.0

_Rows = TypeVar("_Rows", StepRows, PhaseRows)


def even_waits(data: JobData, history: Collection[int], window: Collection[int]) -> JobData:
    """Return the same telemetry, its steps told alike where they are compared.

    A rank is compared with its own history; where there is none, with the others.

    Args:
        data: Telemetry.
        history: Numbers of the healthy steps, may be empty.
        window: Numbers of the steps in question.
    """
    steps = data.steps
    is_watched = ~np.isnan(steps.states[:, ThreadState.BLOCKED])
    is_before = is_watched & np.isin(steps.step, list(history))
    is_now = is_watched & np.isin(steps.step, list(window))
    is_asked = is_before | is_now
    ranks, rank = np.unique(steps.rank, return_inverse=True)
    told = np.nan_to_num(steps.told_wait_s, nan=UNTOLD)

    def range_of(rows: BoolArray) -> tuple[FloatArray, FloatArray]:
        low, high = np.full(ranks.shape, np.inf), np.full(ranks.shape, -np.inf)
        np.minimum.at(low, rank[rows], told[rows])
        np.maximum.at(high, rank[rows], told[rows])
        return low, high

    lowest, highest = range_of(is_asked)
    is_uneven = lowest < highest
    if not history and lowest.min(initial=np.inf) < highest.max(initial=-np.inf):
        is_uneven = np.ones(ranks.shape, dtype=np.bool_)
    if not is_uneven.any():
        return data
    now, latest = range_of(is_now)
    alike = np.bincount(rank[is_before & (told == now[rank])], minlength=ranks.size)
    is_enough = (now == latest) & (now > UNTOLD) & (alike >= MIN_TOLD_STEPS)
    wanted = {int(ranks[i]): float(now[i]) for i in np.flatnonzero(is_uneven & is_enough)}
    put_back = ranks[is_uneven & ~is_enough]
    return replace(
        data,
        steps=_put_back(_leave_out(steps, wanted), put_back),
        phases=_put_back(_leave_out(data.phases, wanted), put_back),
    )


def _leave_out(rows: _Rows, wanted: Mapping[int, float]) -> _Rows:
    """Return the rows with those of some ranks that tell their waits in another way as if nobody had watched."""
    if not wanted:
        return rows
    states = rows.states.copy()
    for rank, told_wait_s in wanted.items():
        states[(rows.rank == rank) & (rows.told_wait_s != told_wait_s)] = np.nan
    return replace(rows, states=states)


def _put_back(rows: _Rows, ranks: IntArray) -> _Rows:
    """Return the rows with the waits of some ranks in their blocked time."""
    if not ranks.size:
        return rows
    chosen = np.isin(rows.rank, ranks)
    states, told_wait_s = rows.states.copy(), rows.told_wait_s.copy()
    for state in TOLD_STATES:
        states[chosen, ThreadState.BLOCKED] += states[chosen, state]
        states[chosen, state] = 0.0
    told_wait_s[chosen] = np.nan
    return replace(rows, states=states, told_wait_s=told_wait_s)
