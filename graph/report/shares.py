"""Where the seconds of a rank's step went: parts that add up to the step.

The main thread's states are those of the analysis; of its blocked time, what was a wait for a collective is a wait for
other ranks. What no sensor saw is a part of its own, so that nothing is missing from the sum.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from rootwalk.graph.columns import FloatArray, JobData, ThreadState
from rootwalk.graph.lanes import Region, find_waits, regions_of

__all__ = ["SHARE_NAMES", "Share", "mean_shares", "region_shares"]


class Share(IntEnum):
    """Parts of a step, in the order in which bars show them."""

    WORK = 0
    GC = 1
    FOREIGN = 2
    OWN = 3
    IDLE = 4
    UNSPLIT = 5
    LOADER = 6
    FILES = 7
    ANSWERS = 8
    INTERPRETER = 9
    KERNEL = 10
    BLOCKED = 11
    UNSEEN = 12
    RANKS = 13


SHARE_NAMES: Final[dict[Share, str]] = {
    Share.WORK: "running its own work",
    Share.GC: "Python's garbage collection",
    Share.FOREIGN: "its CPU ran other processes",
    Share.OWN: "its CPU ran its own other threads",
    Share.IDLE: "held back while its CPU was idle",
    Share.UNSPLIT: "its CPU ran something else",
    Share.LOADER: "waiting for its loader workers",
    Share.FILES: "waiting for files",
    Share.ANSWERS: "waiting to write or for answers",
    Share.INTERPRETER: "waiting for the interpreter lock",
    Share.KERNEL: "stopped, interrupts, memory of the kernel",
    Share.BLOCKED: "blocked otherwise",
    Share.UNSEEN: "not seen by a sensor",
    Share.RANKS: "waiting for other ranks",
}

_SHARE_OF_STATE: Final[dict[ThreadState, Share]] = {
    ThreadState.RUNNING: Share.WORK,
    ThreadState.FOREIGN: Share.FOREIGN,
    ThreadState.OWN: Share.OWN,
    ThreadState.IDLE: Share.IDLE,
    ThreadState.UNSPLIT: Share.UNSPLIT,
    ThreadState.BLOCKED: Share.BLOCKED,
    ThreadState.GC: Share.GC,
    ThreadState.LOADER: Share.LOADER,
    ThreadState.LOADER_FILES: Share.FILES,
    ThreadState.INTERPRETER: Share.INTERPRETER,
    ThreadState.READ: Share.FILES,
    ThreadState.WRITE: Share.FILES,
    ThreadState.OUTPUT: Share.ANSWERS,
    ThreadState.SERVICE: Share.ANSWERS,
    ThreadState.STOPPED: Share.KERNEL,
    ThreadState.INTERRUPT: Share.KERNEL,
    ThreadState.RECLAIM: Share.KERNEL,
    ThreadState.DEVICE: Share.BLOCKED,
    ThreadState.MEMORY_MAP: Share.KERNEL,
}


def mean_shares(data: JobData, step_numbers: tuple[int, ...]) -> dict[int, FloatArray]:
    """Return mean seconds a step by rank, one number for each `Share`; ranks that lack one of the steps are left out.

    Args:
        data: Telemetry of these steps on one clock.
        step_numbers: The steps, ascending.
    """
    return {
        rank: sum(
            (region_shares(region) for regions in steps for region in regions),
            np.zeros(len(Share)),
        )
        / len(step_numbers)
        for rank, steps in regions_of(data, step_numbers).items()
    }


def region_shares(region: Region) -> FloatArray:
    """Return the seconds of one region by part; their sum is its length."""
    length_s = region.end_s - region.start_s
    states = np.nan_to_num(region.states)
    waited_s = sum(wait.end_s - wait.start_s for wait in find_waits(region))
    is_watched = not np.isnan(region.states[ThreadState.BLOCKED])
    waited_s = min(waited_s, float(states[ThreadState.BLOCKED]) if is_watched else length_s)
    if is_watched:
        states[ThreadState.BLOCKED] -= waited_s
    shares = np.zeros(len(Share))
    for state, share in _SHARE_OF_STATE.items():
        shares[share] += states[state]
    shares[Share.RANKS] = waited_s
    left_s = length_s - float(shares.sum())
    if left_s >= 0.0:
        shares[Share.UNSEEN] = left_s
    elif shares.sum() > 0.0:
        # Sensor and hooks read the clock at other moments; the parts share the difference.
        shares *= length_s / float(shares.sum())
    return shares
