"""Keeps an agent within its budget: what it costs over the time of the steps that it watches.

    cost of 10 s / step time of 10 s    > budget  ──▶ one rung down, and look again 10 s later
                                        small for a minute, and the rung above would fit ──▶ one rung up

Rungs lower what the agent itself does. What kernel programs cost where many CPUs switch is told, and is no reason to
give up what they tell: half the budget is always the agent's own.

Going up is a guess: what the rung above cost when it was left, as much less as this rung costs less now. A guess that
fails doubles the time until the next one, so a load near the limit does not swing. Pure: the caller brings the clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["DEFAULT_RATIO", "LADDER", "MIN_STEP_S", "Budget", "Rung"]

DEFAULT_RATIO = 0.003
# A step below a second counts as one, or a job of many short steps could not be watched at all.
MIN_STEP_S = 1.0
WINDOW_S = 10.0
CALM_S = 60.0
MAX_CALM_S = 3600.0
# Room that must be left above a rung that is taken again.
ROOM_RATIO = 0.8


@dataclass(frozen=True, slots=True)
class Rung:
    """How much an agent does.

    Attributes:
        round_s: How often it reads and sends.
        max_level: The highest level of its own readers.
        max_rank_level: The highest level of the ranks' hooks.
        text: What it does without, for people.
        stalls_per_step: How many waits for a CPU, and how many other stalls, are told of a rank's step and role of
            thread: the longest. None for what the level tells.
        above: Taken where the rung before costs more than so many budgets.
    """

    round_s: float
    max_level: int
    max_rank_level: int
    text: str
    stalls_per_step: int | None = None
    above: float = 1.0


# What is given up first hurts least: nobody misses half a second, and the longest stalls name the same process. But
# without stalls none is named, and without collectives nobody knows who waited for whom: an agent that cannot say
# anything is cheap and useless, so that takes more than a full budget.
LADDER = (
    Rung(0.5, 2, 2, "full detail"),
    Rung(1.0, 1, 2, "rounds of 1 s"),
    Rung(2.0, 1, 2, "rounds of 2 s"),
    Rung(2.0, 1, 2, "rounds of 2 s, the longest stalls", stalls_per_step=4),
    Rung(2.0, 0, 2, "rounds of 2 s, no stalls", above=3.0),
    Rung(2.0, 0, 0, "rounds of 2 s, no stalls, no collectives", above=3.0),
)


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    cost_s: float
    fixed_s: float
    step_s: float


class Budget:
    """Decides which rung an agent stands on.

    Args:
        ratio: What it may cost over the time of the steps that it watches; None for no limit.

    Attributes:
        ratio: The same.
        rung: Index in `LADDER`.
        cost_ratio: What it cost in the last 10 s; None where no step was watched.
    """

    def __init__(self, ratio: float | None = DEFAULT_RATIO) -> None:
        self.ratio = ratio
        self.rung = 0
        self.cost_ratio: float | None = None
        self._samples: deque[_Sample] = deque()
        self._calm_since_s: float | None = None
        self._calm_needed_s = CALM_S
        # For each rung that was left: what it cost, and what the rung below cost then (None until that is known).
        self._left: list[tuple[float, float | None]] = []
        self._raised_s: float | None = None

    @property
    def limits(self) -> Rung:
        """What the rung allows."""
        return LADDER[self.rung]

    def look(self, now_s: float, cost_s: float, step_s: float, fixed_s: float = 0.0) -> bool:
        """Take what it cost up to now, and return whether the rung has changed.

        Args:
            now_s: The caller's clock.
            cost_s: CPU time of agent and kernel programs since their start.
            step_s: Time of the steps watched since then, each of them 1 s at least.
            fixed_s: The part of the cost that no rung lowers.
        """
        samples = self._samples
        if samples and step_s <= samples[-1].step_s:
            samples.clear()  # nobody trains: what is spent now is not for steps
        samples.append(_Sample(now_s, cost_s, fixed_s, step_s))
        while len(samples) > 2 and samples[1].at_s <= now_s - WINDOW_S:
            samples.popleft()
        first = samples[0]
        watched_s = step_s - first.step_s
        self.cost_ratio = (cost_s - first.cost_s) / watched_s if watched_s > 0.0 else None
        if now_s - first.at_s < WINDOW_S or self.cost_ratio is None or self.ratio is None:
            return False
        fixed_ratio = (fixed_s - first.fixed_s) / watched_s
        own_ratio = self.cost_ratio - fixed_ratio
        limit = max(self.ratio - fixed_ratio, self.ratio / 2)
        if self._left and self._left[-1][1] is None:
            self._left[-1] = (self._left[-1][0], own_ratio)
        if self.rung + 1 < len(LADDER) and own_ratio > limit * LADDER[self.rung + 1].above:
            return self._lower(now_s, own_ratio)
        return self._raise(now_s, own_ratio, ROOM_RATIO * limit * self.limits.above)

    def _lower(self, now_s: float, cost_ratio: float) -> bool:
        self._calm_since_s = None
        if self._raised_s is not None and now_s - self._raised_s < self._calm_needed_s:
            self._calm_needed_s = min(self._calm_needed_s * 2, MAX_CALM_S)
        self._left.append((cost_ratio, None))
        self._step_to(self.rung + 1)
        return True

    def _raise(self, now_s: float, cost_ratio: float, limit: float) -> bool:
        if not self._left or not self._would_fit(cost_ratio, limit):
            self._calm_since_s = None
            return False
        if self._calm_since_s is None:
            self._calm_since_s = now_s
        if now_s - self._calm_since_s < self._calm_needed_s:
            return False
        self._left.pop()
        self._raised_s = now_s
        self._step_to(self.rung - 1)
        return True

    def _would_fit(self, cost_ratio: float, limit: float) -> bool:
        above, below = self._left[-1]
        expected = above * cost_ratio / below if below else above
        return expected <= limit

    def _step_to(self, rung: int) -> None:
        self.rung = rung
        self._calm_since_s = None
        self._samples.clear()
