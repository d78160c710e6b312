"""How fast the cores execute while a job runs: the same little work again and again, by its own CPU time.

    core 0    47 us  46  47 ...  47  87  85  88  86 ...  47        the host under a virtual machine lends less of them
    core 1    47 us  47  46 ...  47  86  88  87  85 ...  47        than it says: both are threads of one, for a while

The kernel of a guest is not told: no other process ran, and nothing was stolen. A rank there runs longer for the same
work, which is no fault of the job's: what was found in such a run says nothing about a healthy job. Knows nothing of
verdicts, and of Rootwalk.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from types import TracebackType
from typing import Self

__all__ = ["MachineSpeed", "slowdown_of"]

NS = 1_000_000_000
# A look takes some 0.1 ms of a core.
PERIOD_S = 0.05
ROUNDS = 3000
# Fewer looks say nothing.
MIN_LOOKS = 20


def slowdown_of(looks: list[tuple[int, float]], first_unix_ns: int, last_unix_ns: int) -> float:
    """Return how much longer the work took in a span of time than before it, as a part of that; 0 where few looked.

    Args:
        looks: When, Unix ns, and what the work took, s.
        first_unix_ns: Where the span begins.
        last_unix_ns: Where it ends.
    """
    before = [took for at, took in looks if at < first_unix_ns]
    inside = [took for at, took in looks if first_unix_ns <= at <= last_unix_ns]
    if min(len(before), len(inside)) < MIN_LOOKS:
        return 0.0
    return statistics.fmean(inside) / statistics.fmean(before) - 1.0


class MachineSpeed:
    """Does the work on each core that this process may use, from a thread, as long as it is entered."""

    def __init__(self) -> None:
        self._looks: dict[int, list[tuple[int, float]]] = {
            core: [] for core in sorted(os.sched_getaffinity(0))
        }
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def looks(self) -> dict[int, list[tuple[int, float]]]:
        """When it looked at each core, Unix ns, and what the work took there, s."""
        return self._looks

    def slowdown(self, begun_unix_ns: int, first_unix_ns: int, last_unix_ns: int) -> float:
        """Return how much longer the work took in a span than since `begun_unix_ns`, on the core that lost most."""
        return max(
            slowdown_of(
                [one for one in looks if one[0] >= begun_unix_ns], first_unix_ns, last_unix_ns
            )
            for looks in self._looks.values()
        )

    def _look_on(self) -> None:
        while not self._ended.wait(PERIOD_S):
            for core, looks in self._looks.items():
                os.sched_setaffinity(0, {core})  # of this thread
                looks.append((time.time_ns(), do_work()))


def do_work() -> float:
    """Do the work twice; return the CPU time of the second, which finds its caches warm, s."""
    took_s = 0.0
    for _ in range(2):
        began_s = time.thread_time()
        sum(range(ROUNDS))
        took_s = time.thread_time() - began_s
    return took_s
