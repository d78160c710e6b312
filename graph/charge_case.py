"""What every charge needs: the window, its excess, who was there to be charged, and whether ranks differ at all."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rootwalk.graph.causes import Amounts
from rootwalk.graph.columns import FloatArray, IntArray, JobData, ThreadState
from rootwalk.graph.cpu_speed import ProbeTimes, is_slow_in_turn
from rootwalk.graph.crowds import STANDING_OUT
from rootwalk.graph.in_turn import is_in_turn
from rootwalk.graph.loaders import HeldUp
from rootwalk.graph.measures import Excess
from rootwalk.graph.runners import Runners
from rootwalk.graph.spread import Spread
from rootwalk.graph.steps import StepGraph

__all__ = ["ChargeCase"]


@dataclass(frozen=True, slots=True)
class ChargeCase:
    """What all charges need: the window, its excess, and by rank who was there to be charged.

    `throttled_s` and `budget_s` (growth of the loader workers' CPU time) are seconds over the window; ranks of which
    nothing is known are missing. `hidden` is which part of the time that a rank's transfers stood
    behind strangers was its limit's; `speeds` what the same little work takes on each rank's CPU, where all tell.
    """

    data: JobData
    window: StepGraph
    excess: Excess
    spread: Spread
    amounts: Amounts
    runners: Runners
    rank_of_region: IntArray
    rank_of_slot: IntArray
    held: HeldUp
    budget_s: dict[int, float]
    children: dict[int, float]
    throttled_s: dict[int, float]
    lock_queue: dict[int, float]
    hidden: dict[int, float] = field(default_factory=dict)
    speeds: tuple[ProbeTimes, ...] = ()

    @property
    def ranks(self) -> list[int]:
        """The ranks of the window, in order."""
        return sorted(self.window.lane_end)

    def total_s(self, region_s: FloatArray, rank: int) -> float:
        """Return the seconds of one rank in all regions and steps."""
        return float(region_s[self.rank_of_region == rank].sum())

    def is_alike(self, region_s: FloatArray) -> bool:
        """Return whether several ranks have lost about as much, so that none of them stands out."""
        totals = [self.total_s(region_s, rank) for rank in self.ranks]
        return len(totals) > 1 and 0.0 < max(totals) < STANDING_OUT * min(totals)

    def is_of_cpus(self, region_s: FloatArray) -> bool:
        """Return whether who ran longest did so on a CPU that is slower, as those of the others are in some steps."""
        usual_s = self.excess.usual_states[:, ThreadState.RUNNING]
        growth = [
            region_s[mine].sum(axis=0) / max(float(usual_s[mine].sum()), 1e-9)
            for mine in (self.rank_of_region == rank for rank in self.ranks)
        ]
        return is_slow_in_turn(1.0 + np.array(growth), self.speeds)

    def is_in_turn(self, region_s: FloatArray) -> bool:
        """Return whether seconds by region and step move from rank to rank."""
        return is_in_turn(
            np.array([region_s[self.rank_of_region == rank].sum(axis=0) for rank in self.ranks])
        )
