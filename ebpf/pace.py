"""Does something less often when it takes long, so that it never takes more than its share of a CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Pace"]


class Pace:
    """Says when something is due.

    Args:
        max_cpu_ratio: The part of a CPU that it may take.
        interval_s: As often as it is wanted: a turn that takes less than its share of this is followed by the next one.
    """

    def __init__(self, max_cpu_ratio: float, interval_s: float) -> None:
        self._max_cpu_ratio = max_cpu_ratio
        self._interval_s = interval_s
        self._next_s = 0.0

    def is_due(self) -> bool:
        """Return whether the share is free again."""
        return time.monotonic() >= self._next_s

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Take the CPU time of a block into account."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            self.spend(time.thread_time() - began_s)

    def spend(self, cpu_s: float) -> None:
        """Take CPU time into account, s."""
        pause_s = cpu_s / self._max_cpu_ratio
        self._next_s = time.monotonic() + pause_s if pause_s > self._interval_s else 0.0
