"""Compare only like with like: what a thread waited for is told at some levels of detail, and not at others.

    level 0, /proc   |------------- blocked -------------|
    level 1, 2       |----- blocked -----|-- file_read --|      beside the first: waits that seem to have begun

Where the steps of one question differ, the untold ones among the healthy steps are left out if enough others remain;
else the waits go back into the blocked time of all. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from rootwalk.graph.columns import (
    STATE_OF_WAIT,
    BoolArray,
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

    def count(rows: BoolArray) -> IntArray:
        return np.bincount(rank[rows], minlength=ranks.size)

    told, asked = count(is_asked & steps.tells_waits), count(is_asked)
    is_uneven = (told > 0) & (told < asked)
    if not history:
        is_uneven = np.full(ranks.shape, bool(0 < told.sum() < asked.sum()))
    if not is_uneven.any():
        return data
    is_told_now = count(is_now & ~steps.tells_waits) == 0
    is_enough = is_told_now & (count(is_before & steps.tells_waits) >= MIN_TOLD_STEPS)
    left_out, put_back = ranks[is_uneven & is_enough], ranks[is_uneven & ~is_enough]
    return replace(
        data,
        steps=_put_back(_leave_out(steps, left_out), put_back),
        phases=_put_back(_leave_out(data.phases, left_out), put_back),
    )


def _leave_out(rows: _Rows, ranks: IntArray) -> _Rows:
    """Return the rows with those of some ranks that do not tell their waits as if nobody had watched."""
    states = rows.states.copy()
    states[np.isin(rows.rank, ranks) & ~rows.tells_waits] = np.nan
    return replace(rows, states=states)


def _put_back(rows: _Rows, ranks: IntArray) -> _Rows:
    """Return the rows with the waits of some ranks in their blocked time."""
    chosen = np.isin(rows.rank, ranks)
    states, tells_waits = rows.states.copy(), rows.tells_waits.copy()
    for state in TOLD_STATES:
        states[chosen, ThreadState.BLOCKED] += states[chosen, state]
        states[chosen, state] = 0.0
    tells_waits[chosen] = False
    return replace(rows, states=states, tells_waits=tells_waits)
