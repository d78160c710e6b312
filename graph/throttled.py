"""How much of a rank's time behind strangers was its CPU limit's: its control group could not run, whoever was there.

    main thread   |-- runs --|~~~~~~~~ runnable ~~~~~~~~|-- runs --|
    its group                |####### held back ########|              whoever has the CPU now came by
    its CPU                  | idle |   a stranger      |

A group that is held back runs nothing. So what was throttled fell on time in which the main thread did not run: on an
idle CPU, behind strangers, or while it was blocked and another thread of its group wanted to run. Only the last can
excuse the limit, and there is no more of it than the thread was blocked. A neighbour of a rank whose group was not held
back is never excused; beside one that was, for no more than the group stood.

Owns that split; charges nobody.

Source:
    Documentation/scheduler/sched-bwc.rst: throttled threads cannot run again until the next period. A CPU may still use
    up what it holds of its last slice; how long the group stood is counted over its CPUs (`ebpf.cgroups.stood_ns`).
"""

from __future__ import annotations

import numpy as np

from rootwalk.graph.columns import ThreadState
from rootwalk.graph.steps import StepGraph

__all__ = ["elsewhere_s", "hidden_s", "is_limit"]

# A CPU that stays idle for a runnable thread is the limit's doing if the group was throttled for at least this part
# of it: the group's time is sampled twice a second, and counts every CPU on which the group was held back.
MIN_THROTTLED_RATIO = 0.5
# Who runs on the CPU of a throttled rank for up to this part of its idle time came by. Measured 0.09 beside one other
# rank on two cores, whose threads and helpers had nowhere else to go.
MAX_GAP_RATIO = 0.2
# Of throttled time that no idle CPU shows, at most this part may fit where the thread was blocked: then at least half
# was certainly behind strangers, and the rest is taken to be. Of less, only what is certain.
MAX_ELSEWHERE_RATIO = 0.5
# Time that the main thread did not lose to its limit: it ran, or a thread of its own group did, which the limit holds
# back as well.
_OF_GROUP = (ThreadState.RUNNING, ThreadState.GC, ThreadState.INTERRUPT, ThreadState.OWN)
_HELD_BACK = (ThreadState.FOREIGN, ThreadState.IDLE)


def is_limit(throttled_s: float | None, idle_s: float) -> bool:
    """Return whether a rank's time on an idle CPU may be its limit's: it was throttled, or nobody looked (None)."""
    return throttled_s is None or throttled_s >= MIN_THROTTLED_RATIO * idle_s


def hidden_s(throttled_s: float, idle_s: float, foreign_s: float, blocked_s: float) -> float:
    """Return how many of the seconds behind strangers were the limit's.

    Args:
        throttled_s: For how long the group was held back, above its history.
        idle_s: Runnable on an idle CPU, above its history; the limit's already.
        foreign_s: Runnable behind strangers, above its history.
        blocked_s: Neither running nor runnable, or not known which.
    """
    left_s = throttled_s - idle_s
    came_by = foreign_s <= MAX_GAP_RATIO * idle_s
    if not came_by and blocked_s > MAX_ELSEWHERE_RATIO * left_s:
        left_s -= blocked_s
    return max(min(left_s, foreign_s), 0.0)


def elsewhere_s(window: StepGraph) -> dict[int, float]:
    """Return by rank for how long its main thread was neither running nor seen runnable in the window, in seconds.

    Waits for other ranks are among it, and so is time of which nobody knows.
    """
    table = window.regions
    known_s = np.nan_to_num(table.states[:, [*_OF_GROUP, *_HELD_BACK]]).sum(axis=1)
    rest_s = np.maximum(table.end_s - table.start_s - known_s, 0.0)
    rank_of_region = np.array([key[0] for key in window.keys.regions], dtype=np.int64)
    ranks = rank_of_region[table.region]
    return {rank: float(rest_s[ranks == rank].sum()) for rank in window.lane_end}
