"""Ranks of one host that share CPUs: whose fault it is when the queue grows in which they always stand.

    healthy    rank 0 |#### | waits for rank 1 |    | ####|      two ranks take turns on one CPU
    slow       rank 0 |#### | waits for rank 1 for longer | ####|

A queue grows when one of those in it works more, when a stranger comes, and when the machine gets slower. That it grew
accuses nobody who stands in it: it is charged to the work of the rank that ran, as far as that has grown more than
everybody's, and else to no rank. Where ranks have CPUs of their own, a rank that comes to another's is contention.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from rootwalk.graph.causes import CauseKey
from rootwalk.graph.columns import JobData
from rootwalk.graph.contenders import IDLE_PID, ProcessShares, process_seconds, process_shares
from rootwalk.graph.reasons import Reason
from rootwalk.graph.steps import StepGraph

__all__ = ["GLOBAL_SLOW", "Sharing", "open_sharing"]

# A rank shares its CPUs where it stands behind other ranks for this part of a healthy step. Measured 0.1 with four
# ranks on two cores that wait for a device most of the time.
MIN_SHARING_RATIO = 0.03
# What nobody does in particular.
GLOBAL_SLOW = CauseKey(Reason.GLOBAL_SLOW, None, None)


def open_sharing(
    data: JobData, own: Mapping[int, set[int]], history: tuple[int, ...], window: StepGraph
) -> Sharing:
    """Return who stands in line with whom in a window.

    Args:
        data: Telemetry on the aligned clock.
        own: Processes that are not foreign to each rank.
        history: Healthy steps, may be empty.
        window: Graph of the steps in question.
    """
    shares = {
        rank: process_shares(data, rank, own.get(rank, {IDLE_PID}), history, window.step_numbers)
        for rank in window.lane_end
    }
    return Sharing(_find_fellows(data, own, history or window.step_numbers), shares)


def _find_fellows(
    data: JobData, own: Mapping[int, set[int]], history: tuple[int, ...]
) -> dict[int, dict[int, int]]:
    """Return for each rank that shares its CPUs with others of its host in healthy steps: their ranks, by process."""
    ranks_of_host: dict[str, list[int]] = {}
    for row in data.ranks:
        ranks_of_host.setdefault(row.host_id, []).append(row.rank)
    is_history = np.isin(data.steps.step, history)
    result = {}
    for row in data.ranks:
        rank, mine = row.rank, own.get(row.rank, {IDLE_PID})
        fellows = {
            pid: other
            for other in ranks_of_host[row.host_id]
            if other != rank
            for pid in own.get(other, set()) - mine
        }
        rows = is_history & (data.steps.rank == rank)
        lasted_s = float((data.steps.end_s[rows] - data.steps.start_s[rows]).sum())
        if not fellows or lasted_s <= 0.0:
            continue
        stalls = [stall for stall in data.stalls if stall.rank == rank]
        behind = process_seconds(stalls, mine, history)
        behind_s = sum(float(behind[pid].sum()) for pid in fellows.keys() & behind.keys())
        if behind_s >= MIN_SHARING_RATIO * lasted_s:
            result[rank] = fellows
    return result


@dataclass(frozen=True, slots=True)
class Sharing:
    """Who stands in line with whom, over a window.

    Attributes:
        fellows: Of each rank that shares its CPUs, the ranks in line with it, by process.
        shares: Which processes ran in each rank's place.
        worked: Of what each rank stood behind each other, the part for which the other worked more; none is 0.
    """

    fellows: Mapping[int, Mapping[int, int]]
    shares: Mapping[int, ProcessShares]
    worked: dict[tuple[int, int], float] = field(default_factory=dict)

    def measure(self, ran_s: Mapping[int, float], behind_s: Mapping[int, float]) -> None:
        """Learn how much longer each rank ran and stood behind others, before anybody is blamed."""
        common_s = max(min(ran_s.values(), default=0.0), 0.0)
        for rank, fellows in self.fellows.items():
            if rank not in self.shares:
                continue
            shares = self.shares[rank]
            stood_s: dict[int, float] = {}
            for pid, share in zip(shares.pids, shares.shares, strict=True):
                if pid is not None and pid in fellows:
                    seconds = behind_s[rank] * float(share.mean())
                    stood_s[fellows[pid]] = stood_s.get(fellows[pid], 0.0) + seconds
            for runner, seconds in stood_s.items():
                more_s = max(ran_s.get(runner, 0.0) - common_s, 0.0)
                self.worked[rank, runner] = min(more_s / seconds, 1.0) if seconds > 0.0 else 0.0

    def has(self, rank: int, pid: int | None) -> bool:
        """Whether a process that ran in a rank's place is one that it always stands in line with, or may be."""
        return rank in self.fellows and (pid is None or pid in self.fellows[rank])

    def blame(self, rank: int, pid: int | None) -> Iterator[tuple[CauseKey, float]]:
        """Yield what it is charged to that such a process ran in a rank's place, with the parts."""
        if pid is None:
            yield GLOBAL_SLOW, 1.0
            return
        runner = self.fellows[rank][pid]
        part = self.worked.get((rank, runner), 0.0)
        yield CauseKey(Reason.WORK_IMBALANCE, runner, None), part
        yield GLOBAL_SLOW, 1.0 - part
