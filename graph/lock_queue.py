"""Queues for a CPU behind the thread that holds the interpreter lock: they are part of what that lock costs.

    main thread  |-- waits for the lock --|-- runnable --|     the lock is asked for after 5 ms; who held it still runs
    that thread  |------------- holds it, runs ----------|     there, on the only core that both may use

Who ended the waits for the lock is who held it. With more threads than cores nobody waits for the lock, or each queue
is behind another thread: that is no holder's. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from rootwalk.graph.columns import JobData, StallRow
from rootwalk.graph.contenders import RUNNABLE_STATE
from rootwalk.graph.loaders import MAIN_ROLE

__all__ = ["find_holders", "lock_queue_ratio"]

LOCK_WAIT: Final = "interpreter_lock"
# One thread ended at least this part of a rank's waits for the lock: then it is the one that holds it.
MIN_HOLDER_RATIO: Final = 0.5


def find_holders(
    stalls: Iterable[StallRow], pid_by_rank: Mapping[int, int | None], steps: Iterable[int]
) -> dict[int, int]:
    """Return by rank the thread that ended most of its main thread's waits for the interpreter lock.

    Args:
        stalls: Of all ranks.
        pid_by_rank: Their processes; a lock is held by a thread of the same process.
        steps: Numbers of the steps.
    """
    inside = set(steps)
    total_s: dict[int, float] = defaultdict(float)
    ended_s: dict[tuple[int, int], float] = defaultdict(float)
    for stall in stalls:
        wait = stall.wait
        if wait is None or wait.kind != LOCK_WAIT or stall.role != MAIN_ROLE:
            continue
        if stall.step not in inside:
            continue
        total_s[stall.rank] += stall.end_s - stall.start_s
        if wait.waker_thread_id is not None and wait.waker_pid == pid_by_rank.get(stall.rank):
            ended_s[stall.rank, wait.waker_thread_id] += stall.end_s - stall.start_s
    return {
        rank: thread
        for (rank, thread), seconds in ended_s.items()
        if seconds > MIN_HOLDER_RATIO * total_s[rank]
    }


def lock_queue_ratio(
    data: JobData, own: Mapping[int, set[int]], steps: tuple[int, ...]
) -> dict[int, float]:
    """Return by rank which part of its main thread's time behind its own was behind who holds the interpreter lock.

    Args:
        data: Telemetry; of its stalls those of 1 ms or more are there.
        own: Processes that are not foreign to a rank.
        steps: Numbers of the steps.

    Returns:
        Ranks without such a thread are missing; where nobody told which thread ran, so are all.
    """
    holders = find_holders(data.stalls, {row.rank: row.pid for row in data.ranks}, steps)
    inside = set(steps)
    behind_s: dict[int, float] = defaultdict(float)
    total_s: dict[int, float] = defaultdict(float)
    for stall in data.stalls:
        if stall.rank not in holders or stall.role != MAIN_ROLE or stall.step not in inside:
            continue
        if stall.state != RUNNABLE_STATE:
            continue
        mine = own.get(stall.rank, set())
        total_s[stall.rank] += sum(c.seconds for c in stall.contenders if c.pid in mine)
        if stall.own_thread is not None and stall.own_thread.thread_id == holders[stall.rank]:
            behind_s[stall.rank] += stall.own_thread.seconds
    return {
        rank: min(behind_s[rank] / seconds, 1.0)
        for rank, seconds in total_s.items()
        if seconds > 0.0 and behind_s[rank] > 0.0
    }
