"""How long Python's garbage collector takes, from the interpreter's own callbacks.

    gc.callbacks   start |---- collection ----| stop        on whichever thread made one allocation too many

The interpreter runs one collection at a time, whatever its threads do, so one pair of times is enough. A callback runs
in the middle of anything, the hooks and a write into the ring included: it touches nothing but its own numbers and a
bounded queue, and whoever owns the watch takes them when it is safe. Standard library only.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Collection", "GcWatch"]

# Shorter collections are in the sums of the phase; a span of its own would cost more than they do.
MIN_COLLECTION_NS = 1_000_000
# Collections of 1 ms or more within one phase: a phase with more of them has been collecting for a second.
MAX_WAITING = 1024


class Collection(NamedTuple):
    """One collection of `MIN_COLLECTION_NS` or more.

    `start_mono_ns` and `end_mono_ns` are on the monotonic clock; `generation` is 0 to 2.
    """

    start_mono_ns: int
    end_mono_ns: int
    generation: int
    is_main: bool


class GcWatch:
    """Counts what collections cost the thread that trains; knows nothing until `install`, and nothing after `remove`.

    Args:
        now: The monotonic clock, ns.
        cpu_now: The calling thread's CPU time, ns.
    """

    def __init__(
        self,
        now: Callable[[], int] = time.monotonic_ns,
        cpu_now: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self.main_cpu_ns = 0
        self.dropped = 0
        self._waiting: deque[Collection] = deque()
        self._now = now
        self._cpu_now = cpu_now
        # Kept here because a module's names may be gone when the interpreter collects for the last time.
        self._own_thread = threading.get_ident
        self._main_thread: int | None = threading.main_thread().ident
        self._start_mono_ns = 0
        self._start_cpu_ns = 0
        self._callback = self._on_collection

    def install(self) -> None:
        """Begin to count."""
        if not self.is_installed:
            gc.callbacks.append(self._callback)

    def remove(self) -> None:
        """Stop counting; safe twice, and when somebody else has emptied the interpreter's list."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._callback)
        self._start_mono_ns = 0

    def follow_thread(self, ident: int) -> None:
        """Count for another thread than the process's first from now on: the one that trains."""
        self._main_thread = ident

    @property
    def is_installed(self) -> bool:
        """Whether collections are seen: any library may change the interpreter's list."""
        return self._callback in gc.callbacks

    def take_before(self, mono_ns: int) -> list[Collection]:
        """Return the long collections that began before a moment, oldest first, and forget them."""
        taken: list[Collection] = []
        while self._waiting and self._waiting[0].start_mono_ns < mono_ns:
            taken.append(self._waiting.popleft())
        return taken

    def take_dropped(self) -> int:
        """Return how many long collections nobody took in time, and count from 0 again."""
        dropped, self.dropped = self.dropped, 0
        return dropped

    def _on_collection(self, phase: str, details: dict[str, Any]) -> None:
        if phase == "start":
            self._start_cpu_ns = self._cpu_now()
            self._start_mono_ns = self._now()
            return
        start, self._start_mono_ns = self._start_mono_ns, 0
        if not start:  # it began before we were here
            return
        end = self._now()
        is_main = self._own_thread() == self._main_thread
        if is_main:
            self.main_cpu_ns += self._cpu_now() - self._start_cpu_ns
        if end - start < MIN_COLLECTION_NS:
            return
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(Collection(start, end, details["generation"], is_main))
        else:
            self.dropped += 1
