"""How often a reader reads: as often as it is asked, unless that would cost too much.

What a file costs depends on the machine: /proc/stat takes 30 us with 2 CPUs and milliseconds with 256, an InfiniBand
counter asks the card's firmware. So each reader measures the CPU time of its own readings and rests in proportion:
it takes 1/10,000 of a CPU at most, wherever it runs, but reads once a minute at least: what is older tells nothing of
the steps that are looked at. Until the next reading it repeats the last one; sums since the start lose nothing by that,
they are only known later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from rootwalk.ebpf.reader import Measurement

__all__ = ["Pace"]

# A reader that is allowed 100 us a second; the ten of them together stay below 1 ms a second on any machine.
REST_RATIO = 10_000
# Where this cuts a rest short, a reading takes more than 6 ms: no known one does for long.
MAX_REST_S = 60.0


class Pace:
    """When one kind of reading is due.

    Args:
        interval_s: Never more often than this; 0 for every time that it is asked.
        clock_s: Monotonic clock, s.
        cpu_clock_s: CPU time of the calling thread, s.
    """

    def __init__(
        self,
        interval_s: float = 0.0,
        clock_s: Callable[[], float] = time.monotonic,
        cpu_clock_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._interval_s = interval_s
        self._clock_s = clock_s
        self._cpu_clock_s = cpu_clock_s
        self._next_s: float | None = None
        self._last: Sequence[Measurement] = ()

    def take(self, read: Callable[[], Iterable[Measurement]]) -> Sequence[Measurement]:
        """Return a new reading if one is due, else the last one."""
        now_s = self._clock_s()
        if self._next_s is not None and now_s < self._next_s:
            return self._last
        start_s = self._cpu_clock_s()
        self._last = list(read())
        took_s = self._cpu_clock_s() - start_s
        self._next_s = now_s + max(self._interval_s, min(took_s * REST_RATIO, MAX_REST_S))
        return self._last
