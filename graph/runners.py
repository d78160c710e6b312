"""Whom it is charged to that a process ran in a rank's place: a rank in line, a monitor, a crowd, a stranger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rootwalk.graph.causes import CauseKey, Crowd
from rootwalk.graph.columns import FloatArray, JobData
from rootwalk.graph.contenders import ProcessShares, process_names
from rootwalk.graph.crowds import find_crowds
from rootwalk.graph.moved import find_moves
from rootwalk.graph.reasons import MONITOR_NAMES, Reason
from rootwalk.graph.sharing import Sharing, open_sharing
from rootwalk.graph.steps import StepGraph

__all__ = ["Runners", "open_runners"]


@dataclass(frozen=True, slots=True)
class Runners:
    """Who ran in the ranks' places in a window.

    Attributes:
        sharing: Which of them are ranks that stand in line with each other.
        monitors: Processes that watch.
        own: Processes of each rank.
        moves: Of ranks that came to another's CPUs, what it is that either stands behind the other's processes.
        crowd_of: The crowd that a stranger in a rank's way is one of.
    """

    sharing: Sharing
    monitors: frozenset[int]
    own: Mapping[int, set[int]]
    moves: Mapping[tuple[int, int], CauseKey]
    crowd_of: dict[tuple[int, int], Crowd] = field(default_factory=dict)

    def of(self, rank: int) -> ProcessShares:
        """Return which processes ran in one rank's place."""
        return self.sharing.shares[rank]

    def measure(
        self, data: JobData, ran_s: Mapping[int, float], behind_s: Mapping[int, FloatArray]
    ) -> None:
        """Learn how much longer each rank ran, and stood behind others in each step, before anybody is blamed."""
        self.sharing.measure(ran_s, {rank: float(s.sum()) for rank, s in behind_s.items()})
        strangers = {
            rank: {
                pid: seconds
                for pid, seconds in self.of(rank).seconds(by_step_s).items()
                if pid not in self.monitors and not self.sharing.has(rank, pid)
            }
            for rank, by_step_s in behind_s.items()
        }
        for crowd in find_crowds(data, self.own, strangers):
            self.crowd_of.update({(rank, p): crowd for rank in crowd.ranks for p in crowd.pids})

    def blame(self, rank: int, pid: int | None) -> Iterable[tuple[CauseKey, float]]:
        """Return what it is charged to that a process ran in a rank's place, with the parts."""
        if self.sharing.has(rank, pid):
            return self.sharing.blame(rank, pid)
        if pid is not None and (rank, pid) in self.moves:
            return [(self.moves[rank, pid], 1.0)]
        if pid is not None and (rank, pid) in self.crowd_of:
            return [(self.crowd_of[rank, pid].key, 1.0)]
        reason = Reason.MONITOR_SELF if pid in self.monitors else Reason.CPU_CONTENTION
        return [(CauseKey(reason, rank, pid), 1.0)]


def open_runners(
    data: JobData, own: Mapping[int, set[int]], history: tuple[int, ...], window: StepGraph
) -> Runners:
    """Return who ran in the ranks' places in a window.

    Args:
        data: Telemetry on the aligned clock.
        own: Processes that are not foreign to each rank.
        history: Healthy steps, may be empty.
        window: Graph of the steps in question.
    """
    return Runners(
        open_sharing(data, own, history, window),
        _find_monitors(data),
        own,
        find_moves(data, own, history, window.step_numbers),
    )


def _find_monitors(data: JobData) -> frozenset[int]:
    """Return which processes that ran in a thread's place are our own."""
    names = process_names(data).names
    return frozenset(pid for pid, name in names.items() if name.startswith(MONITOR_NAMES))
