"""How often one episode is diagnosed again: soon while it is young, then at most a twentieth of a core.

    onset  |  1   2   3   4   5                    6         what each costs: 1
           |    4   4   4   4            20
           detected

The first diagnosis sees little of what tells a cause: hosts look at some counters every five seconds, and hand over
what they saw some seconds later. Packets that are lost or late are told apart by the looks of ten seconds, which have
come some 18 s after the onset; the early repeats last until then, while a person still looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Pace"]

# So many repeats come early, after so many times the CPU time that the last one took; later ones after so many.
EARLY_REPEATS: Final = 4
EARLY_PAUSE_PER_COST: Final = 4.0
PAUSE_PER_COST: Final = 20.0


@dataclass(slots=True)
class Pace:
    """When an episode was asked about: how often, when last, and the CPU time that this took, s."""

    count: int = 0
    last_s: float = 0.0
    cost_s: float = 0.0

    def note(self, now_s: float, cost_s: float) -> None:
        """Enter a diagnosis that has ended."""
        self.count += 1
        self.last_s, self.cost_s = now_s, cost_s

    def waited_s(self, now_s: float) -> float:
        """Return how long ago the last one ended."""
        return now_s - self.last_s

    @property
    def is_early(self) -> bool:
        """Whether the next repeat is one of the early ones."""
        return 0 < self.count <= EARLY_REPEATS

    def may_ask(self, now_s: float) -> bool:
        """Return whether another one costs no more than it may."""
        if not self.count:
            return True
        pause = EARLY_PAUSE_PER_COST if self.is_early else PAUSE_PER_COST
        return self.waited_s(now_s) >= pause * self.cost_s
