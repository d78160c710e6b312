"""How fast each CPU of the machine is while a case runs, by the same little work: a harness's own look, not Rootwalk's.

A machine that is a guest of another, or whose cores run two threads, may slow one of its CPUs for seconds. Whoever
names that is right, be there a fault or none.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from types import TracebackType
from typing import Self

__all__ = ["CpuSpeeds", "slowest_part"]

PERIOD_S = 0.1
# Some 20 us of work; the best of some tries was not interrupted.
WORK = range(1000)
TRIES = 3
# A stretch of so many looks is 2 s.
STRETCH = 20


class CpuSpeeds:
    """Times the same work on each CPU until it is left; a fifth of a percent of one."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._times_s: dict[int, list[float]] = {cpu: [] for cpu in os.sched_getaffinity(0)}
        self._threads = [
            threading.Thread(target=self._time, args=(cpu,), daemon=True) for cpu in self._times_s
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    @property
    def slow_stretch(self) -> float:
        """By which part the same work took longer in some stretch on a CPU, the slowest of them."""
        return max((slowest_part(times) for times in self._times_s.values()), default=0.0)

    def _time(self, cpu: int) -> None:
        os.sched_setaffinity(threading.get_native_id(), {cpu})
        while not self._is_over.wait(PERIOD_S):
            self._times_s[cpu].append(min(work_s() for _ in range(TRIES)))


def work_s() -> float:
    """Return how long the work takes, s."""
    began_s = time.perf_counter()
    for _ in WORK:
        pass
    return time.perf_counter() - began_s


def slowest_part(times_s: list[float]) -> float:
    """Return by which part the work took longer in the slowest stretch than it does in the middle of all.

    >>> slowest_part([1.0] * 100 + [1.5] * 20)
    0.5
    """
    if len(times_s) < 2 * STRETCH:
        return 0.0
    usual_s = statistics.median(times_s)
    stretches = (
        statistics.median(times_s[first : first + STRETCH])
        for first in range(len(times_s) - STRETCH + 1)
    )
    return max(stretches) / usual_s - 1
