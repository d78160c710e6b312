"""Whether ages can be trusted: a clock that jumps must not make everything too old at once.

Records carry the wall clock's time of arrival. After a jump, what came before it has an unknown age; it is as old as
is allowed, whatever the clock says, once the allowed age has passed on the monotonic clock. Until then nothing is
deleted by age. A jump before the start cannot be seen; there a deletion of more than half of all records is held back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["RetentionClock"]

# Wall and monotonic time drift apart by microseconds a second; NTP slews by 0.5 ms a second, 30 ms between two looks.
MAX_JUMP_S: Final = 60.0
# A receiver that was off for longer than it keeps telemetry has everything too old at its start: it waits so long.
MAX_HOLD_MOST_S: Final = 86_400.0


class RetentionClock:
    """Says whether records may be deleted by age now; for one thread.

    Args:
        age_s: The age from which on records are deleted.
        wall: Wall clock, seconds; another one in tests.
        monotonic: Monotonic clock, seconds; another one in tests.
    """

    def __init__(
        self,
        age_s: float,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._age_s = age_s
        self._wall, self._monotonic = wall, monotonic
        self._offset_s = wall() - monotonic()
        self._held_until_s = float("-inf")
        self._most_allowed_s: float | None = None

    def find_jump(self) -> float:
        """Return by how much the clock jumped since the last call, seconds; 0 where it did not."""
        offset_s = self._wall() - self._monotonic()
        jump_s = offset_s - self._offset_s
        self._offset_s = offset_s
        if abs(jump_s) <= MAX_JUMP_S:
            return 0.0
        self._held_until_s = self._monotonic() + self._age_s
        return jump_s

    @property
    def may_delete(self) -> bool:
        """Whether ages can be trusted."""
        return self._monotonic() >= self._held_until_s

    @property
    def may_delete_most(self) -> bool:
        """Whether more than half of all records may go at once: after it was held back for long enough."""
        return self._most_allowed_s is not None and self._monotonic() >= self._most_allowed_s

    def hold_most(self) -> bool:
        """Hold back a deletion of more than half; return whether that begins now."""
        if self._most_allowed_s is not None:
            return False
        self._most_allowed_s = self._monotonic() + min(self._age_s, MAX_HOLD_MOST_S)
        return True

    def release_most(self) -> None:
        """Say that less than half is to be deleted again."""
        self._most_allowed_s = None
