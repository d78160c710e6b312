"""How fast the training thread's CPU is: the same little work after the update of a step, by its own CPU time.

    step     | ... update | work work | ... update | work work |        16 us, 16, 17, 16 ... 30, 31, 30: half as fast

A clock that falls, another thread on the same core, a host that lends a virtual machine less than it says: each makes
everything that a rank runs take longer, and where no clock can be read nothing else tells of it. CPU time leaves out
what others run meanwhile. The work lies in the first cache, so it says nothing of slower memory. Must not know torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rootwalk.instrumentation.runtime import Runtime

__all__ = ["CpuProbe", "time_work"]

# The work takes 16 to 27 us each time (two threads of one core): 0.1 % of a CPU at most, and no step has it more often.
PERIOD_NS: Final = 50_000_000
# The first time fetches what the step has pushed out of the caches; an interrupt would count in one of them only.
ROUNDS: Final = 2
NUMBERS: Final = 1_000


def time_work(clock_ns: Callable[[], int] = time.thread_time_ns) -> int:
    """Do the work, and return the CPU time that it took at best, ns.

    Args:
        clock_ns: CPU time of this thread.
    """
    took_ns = []
    for _ in range(ROUNDS):
        began_ns = clock_ns()
        sum(range(NUMBERS))
        took_ns.append(clock_ns() - began_ns)
    return min(took_ns)


class CpuProbe:
    """Does the work at the end of steps, and writes what it took.

    Args:
        runtime: The process's instrumentation.
        now_ns: Monotonic clock.
    """

    def __init__(self, runtime: Runtime, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._runtime = runtime
        self._now_ns = now_ns
        self._due_ns = 0

    def look(self) -> None:
        """Note the end of a step."""
        if self._runtime.is_active:
            self._runtime.guard(self._look)

    def _look(self) -> None:
        tracker, now_ns = self._runtime.tracker, self._now_ns()
        if tracker is not None and now_ns >= self._due_ns:
            self._due_ns = now_ns + PERIOD_NS
            tracker.note_probe(time_work())
