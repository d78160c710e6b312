"""Which processes ran in the place of each rank's threads, step by step, beyond what they did before.

Owns the split of runnable time over processes: stalls of 1 ms or more name them; what is shorter is split alike.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from rootwalk.graph.columns import FloatArray, IntArray, JobData, StallRow

RUNNABLE_STATE = "runnable"
# The kernel's idle task: nothing ran.
IDLE_PID = 0
_NOT_FOREIGN = ("own", "idle")
# Up to this part of the time behind strangers, longer queues among a rank's own threads are theirs too: the threads
# have as much to do as before and half of the core to do it on. Measured 0.02 to 0.04 with one stranger on the core.
MAX_FOLLOWING_RATIO = 0.1
# Where ranks share CPUs, as long as the time behind each other. Measured 0.1 to 0.7.
MAX_SHARING_RATIO = 1.0


@dataclass(frozen=True, slots=True)
class ProcessShares:
    """For one rank: each foreign process's part of the excess, (processes, steps), columns add up to 1.

    `pids` has None for 'other processes', used when no stall names anyone.
    """

    pids: tuple[int | None, ...]
    shares: FloatArray

    def seconds(self, by_step_s: FloatArray) -> dict[int, float]:
        """Return how much of a rank's foreign time, (steps,), is each known process's."""
        return {
            pid: float(by_step_s @ share)
            for pid, share in zip(self.pids, self.shares, strict=True)
            if pid is not None
        }


@dataclass(frozen=True, slots=True)
class ProcessNames:
    """Names and control groups of the processes that stalls mention."""

    names: dict[int, str]
    cgroups: dict[int, str]


def process_names(data: JobData) -> ProcessNames:
    """Return the names of all processes that ran in a thread's place."""
    names: dict[int, str] = {}
    cgroups: dict[int, str] = {}
    for stall in data.stalls:
        for contender in stall.contenders:
            names.setdefault(contender.pid, contender.name)
        if stall.aggressor_pid is not None and stall.aggressor_cgroup:
            cgroups.setdefault(stall.aggressor_pid, stall.aggressor_cgroup)
    return ProcessNames(names, cgroups)


def own_pids(data: JobData) -> dict[int, set[int]]:
    """Return for each rank the processes that are not foreign to it: itself and its children."""
    result = {row.rank: {IDLE_PID} | ({row.pid} if row.pid else set()) for row in data.ranks}
    for stall in data.stalls:
        mine = result.setdefault(stall.rank, {IDLE_PID})
        if stall.aggressor_kind in _NOT_FOREIGN and stall.aggressor_pid is not None:
            mine.add(stall.aggressor_pid)
        if stall.role == "loader_worker" and stall.thread_id is not None:
            mine.add(stall.thread_id)
    return result


def process_seconds(
    stalls: list[StallRow], own: set[int], step_numbers: tuple[int, ...]
) -> dict[int, FloatArray]:
    """Return how long each foreign process ran in one rank's place, (steps,) per process."""
    position = {step: index for index, step in enumerate(step_numbers)}
    result: dict[int, FloatArray] = {}
    for stall in stalls:
        index = position.get(stall.step)
        if index is None or stall.state != RUNNABLE_STATE:
            continue
        for contender in stall.contenders:
            if contender.pid not in own:
                series = result.setdefault(contender.pid, np.zeros(len(step_numbers)))
                series[index] += contender.seconds
    return result


def process_shares(
    data: JobData, rank: int, own: set[int], history: tuple[int, ...], window: tuple[int, ...]
) -> ProcessShares:
    """Return how one rank's foreign time in the window is split over processes.

    Args:
        data: Telemetry on the aligned clock.
        rank: Whose threads waited.
        own: Processes that are not foreign to the rank.
        history: Healthy steps; what a process did there per step is not excess.
        window: Steps to split.
    """
    stalls = [stall for stall in data.stalls if stall.rank == rank]
    before = process_seconds(stalls, own, history)
    during = process_seconds(stalls, own, window)
    pids = sorted(during)
    if not pids:
        return ProcessShares((None,), np.ones((1, len(window))))
    usual = np.array([before[pid].mean() if pid in before else 0.0 for pid in pids])
    seconds = np.array([during[pid] for pid in pids])
    excess = np.maximum(seconds - usual[:, None], 0.0)
    overall = np.maximum(seconds.sum(axis=1) - usual * len(window), 0.0)
    if overall.sum() <= 0.0:
        return ProcessShares((None,), np.ones((1, len(window))))
    # A process below its usual in the window as a whole is not a cause in single steps either.
    excess[overall <= 0.0] = 0.0
    total = excess.sum(axis=0)
    fallback = np.repeat((overall / overall.sum())[:, None], len(window), axis=1)
    shares = np.where(total > 0.0, excess / np.where(total > 0.0, total, 1.0), fallback)
    return ProcessShares(tuple(pids), shares)


def follow_strangers(
    foreign_s: FloatArray,
    own_s: FloatArray,
    rank_of_thing: IntArray,
    sharers: Container[int],
) -> None:
    """Move a rank's excess behind its own threads to the others' where it follows from theirs; in place."""
    for rank in set(rank_of_thing.tolist()):
        mine = rank_of_thing == rank
        own_total_s = float(own_s[mine].sum())
        ratio = MAX_SHARING_RATIO if rank in sharers else MAX_FOLLOWING_RATIO
        if 0.0 < own_total_s <= ratio * float(foreign_s[mine].sum()):
            foreign_s[mine] += own_s[mine]
            own_s[mine] = 0.0
