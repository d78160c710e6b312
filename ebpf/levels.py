"""Which level of detail is in force for whom: requests that come while an agent runs, some of them for a time only.

The last request that is still in force and covers a rank decides; where none does, what the agent was started with.
Pure: the caller brings the clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["HIGHEST_LEVEL", "MAX_PROFILE_HZ", "Levels", "Request"]

HIGHEST_LEVEL = 2
# Samples a second and CPU.
MAX_PROFILE_HZ = 99
# One request a rank of a large host, many times over; more is a mistake in a script.
MAX_REQUESTS = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """One wish for another level.

    Attributes:
        level: 0 to 2.
        ranks: Global ranks; None for all.
        since_s: When it came, on the caller's clock.
        until_s: When it ends; None for never.
        profile_hz: How often stacks are taken meanwhile; None for as often as without it.
    """

    level: int
    ranks: frozenset[int] | None
    since_s: float
    until_s: float | None
    profile_hz: int | None = None

    def covers(self, rank: int, now_s: float) -> bool:
        """Return whether it is in force for a rank."""
        is_over = self.until_s is not None and now_s >= self.until_s
        return not is_over and (self.ranks is None or rank in self.ranks)


class Levels:
    """Remembers requests.

    Args:
        level: What the agent was started with.
        profile_hz: How often it takes stacks, as it was started.
    """

    def __init__(self, level: int, profile_hz: int = 0) -> None:
        self.level = level
        self.profile_hz = profile_hz
        self._requests: list[Request] = []

    def ask(
        self,
        level: int,
        ranks: Collection[int] | None,
        for_s: float | None,
        now_s: float,
        profile_hz: int | None = None,
    ) -> None:
        """Take a request.

        Args:
            level: 0 to 2.
            ranks: Global ranks; None for all, which ends all requests before unless this one ends by itself.
            for_s: How long; None for good.
            now_s: The caller's clock.
            profile_hz: How often stacks are taken; None for as the agent was started.
        """
        until_s = None if for_s is None else now_s + for_s
        chosen = None if ranks is None else frozenset(ranks)
        self._requests = [
            old
            for old in self._requests
            if (old.until_s is None or old.until_s > now_s)
            and not (until_s is None and (chosen is None or old.ranks == chosen))
        ][-MAX_REQUESTS + 1 :]
        self._requests.append(Request(level, chosen, now_s, until_s, profile_hz))

    def asked(self, rank: int, now_s: float) -> Request | None:
        """Return the request that is in force for a rank; None where none is."""
        for request in reversed(self._requests):
            if request.covers(rank, now_s):
                return request
        return None

    def of_rank(self, rank: int, now_s: float) -> int:
        """Return the level in force for a rank."""
        request = self.asked(rank, now_s)
        return self.level if request is None else request.level

    def profile_hz_of(self, rank: int, now_s: float) -> int:
        """Return how often stacks of a rank are taken, samples a second and CPU; 0 for never."""
        request = self.asked(rank, now_s)
        asked = None if request is None else request.profile_hz
        return self.profile_hz if asked is None else asked
