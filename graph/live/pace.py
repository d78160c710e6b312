"""How often one episode is diagnosed again: soon while it is young, then at most a twentieth of a core.

    onset  |  1   2   3   4   5  ...             what each costs: 1
           |    4   4   4   4       20
           detected              16 s later

The first diagnosis sees little of what tells a cause: hosts look at some counters every five seconds, and hand over
what they saw some seconds later. Packets that are lost or late are told apart by the looks of ten seconds, which have
come some 18 s after the onset, and a rank reads from swap only once it has gone through its memory. The early repeats
last until then, while a person still looks; where one diagnosis takes seconds there are still a few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Pace"]

# So many repeats come early, and those of the first seconds, after so many times the CPU time that the last one took;
# later ones after so many.
EARLY_REPEATS: Final = 4
EARLY_S: Final = 16.0
EARLY_PAUSE_PER_COST: Final = 4.0
PAUSE_PER_COST: Final = 20.0


@dataclass(slots=True)
class Pace:
    """When an episode was asked about: how often, when first and last, and the CPU time that this took, s."""

    count: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    cost_s: float = 0.0

    def note(self, now_s: float, cost_s: float) -> None:
        """Enter a diagnosis that has ended."""
        if not self.count:
            self.first_s = now_s
        self.count += 1
        self.last_s, self.cost_s = now_s, cost_s

    def waited_s(self, now_s: float) -> float:
        """Return how long ago the last one ended."""
        return now_s - self.last_s

    def is_early(self, now_s: float) -> bool:
        """Return whether the next repeat is one of the early ones."""
        return self.count > 0 and (self.count <= EARLY_REPEATS or now_s - self.first_s <= EARLY_S)

    def may_ask(self, now_s: float) -> bool:
        """Return whether another one costs no more than it may."""
        if not self.count:
            return True
        pause = EARLY_PAUSE_PER_COST if self.is_early(now_s) else PAUSE_PER_COST
        return self.waited_s(now_s) >= pause * self.cost_s
