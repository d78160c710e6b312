"""The resident memory of another process, read all the time."""

from __future__ import annotations

import contextlib
import threading

import psutil

# A process that takes 2 GB a second grows by 20 MB between two readings.
INTERVAL_S = 0.01


class PeakMemory:
    """Watches a process for the length of a block; `above_idle_bytes` is its peak above what it had at the start."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._idle_bytes = self._process.memory_info().rss
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.above_idle_bytes = 0

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(INTERVAL_S):
            with contextlib.suppress(psutil.NoSuchProcess):
                above_bytes = self._process.memory_info().rss - self._idle_bytes
                self.above_idle_bytes = max(self.above_idle_bytes, above_bytes)
