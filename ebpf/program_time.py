"""How long our kernel programs run: the kernel's own statistics, switched on for a part of the time.

    |on|---------off---------|on|---------off---------|        1 s or more of every 10
       <------- stands for ----->

While they are on, every call of every BPF program of the machine, others' too, takes some 20 ns more; a tenth of the
time says as much. What a program took while they were on stands for all time since they were last on. Where the
machine's owner has switched them on for good (`kernel.bpf_stats_enabled`), nothing is estimated.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["ProgramTime"]

ON_S = 1.0
PERIOD_S = 10.0
SETTING = Path("/proc/sys/kernel/bpf_stats_enabled")


def _is_always_on() -> bool:
    with contextlib.suppress(OSError, ValueError):
        return int(SETTING.read_text(encoding="ascii")) > 0
    return False


class ProgramTime:
    """Time of each program since the start, ns.

    Args:
        read: Returns what the kernel has counted, ns by program.
        switch_on: Switches the statistics on and returns the descriptor that keeps them on; None when refused.
        is_always_on: Whether they are on anyway; None looks.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, int]],
        switch_on: Callable[[], int | None],
        *,
        is_always_on: bool | None = None,
    ) -> None:
        self._read = read
        self._switch_on = switch_on
        self._is_always_on = _is_always_on() if is_always_on is None else is_always_on
        self._descriptor: int | None = None
        self._on_since_s = self._next_s = float("-inf")
        self._known_until_s: float | None = None
        self._counted: dict[str, int] = {}
        self._total: dict[str, int] = {}

    def look(self, now_s: float) -> Mapping[str, int]:
        """Return the time by program up to about now; empty where the kernel does not tell.

        Args:
            now_s: The caller's clock; the statistics are on from one call to another a second or more later.
        """
        if self._is_always_on:
            self._add(1.0)
            return self._total
        if self._descriptor is not None and now_s - self._on_since_s >= ON_S:
            known_until_s = self._known_until_s or self._on_since_s
            self._add((now_s - known_until_s) / (now_s - self._on_since_s))
            self._known_until_s = now_s
            self.close()
        if self._descriptor is None and now_s >= self._next_s:
            self._descriptor = self._switch_on()
            self._on_since_s, self._next_s = now_s, now_s + PERIOD_S
            self._counted = dict(self._read())
        return self._total

    def close(self) -> None:
        """Let the statistics be off; safe twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _add(self, factor: float) -> None:
        now = dict(self._read())
        for name, counted_ns in now.items():
            spent_ns = counted_ns - self._counted.get(name, 0)
            if spent_ns < 0:  # loaded anew meanwhile
                spent_ns = counted_ns
            self._total[name] = self._total.get(name, 0) + round(spent_ns * factor)
        self._counted = now
