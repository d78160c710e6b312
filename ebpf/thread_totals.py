"""Cumulative times of a rank's threads by role, from totals of threads that come and go. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from rootwalk.ebpf.discovery import thread_role
from rootwalk.ebpf.events import ThreadExit, ThreadRecord, ThreadTotals
from rootwalk.instrumentation.semconv import (
    TrainingAggressorKind,
    TrainingThreadRole,
    TrainingThreadState,
)

__all__ = ["RoleTotals"]

STATE_FIELDS = {
    TrainingThreadState.RUNNING: "running_ns",
    TrainingThreadState.RUNNABLE: "runnable_ns",
    TrainingThreadState.BLOCKED: "blocked_ns",
    TrainingThreadState.BLOCKED_IO: "blocked_io_ns",
    TrainingThreadState.STOPPED: "stopped_ns",
}
KIND_FIELDS = {
    TrainingAggressorKind.PROCESS: "foreign_ns",
    TrainingAggressorKind.OWN: "own_ns",
    TrainingAggressorKind.KERNEL: "kernel_ns",
    TrainingAggressorKind.IDLE: "idle_ns",
}
ZERO = ThreadTotals(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class RoleTotals:
    """Sums that never fall: a thread that ends keeps its share."""

    def __init__(self) -> None:
        self._last: dict[int, ThreadTotals] = {}
        self._sums: dict[TrainingThreadRole, ThreadTotals] = defaultdict(lambda: ZERO)

    def add(self, tid: int, thread: ThreadRecord | ThreadExit) -> None:
        """Take a thread's totals as they are now, or were at its end."""
        before = self._last.get(tid, ZERO)
        if thread.totals.switches < before.switches:  # another thread got the id
            before = ZERO
        role = thread_role(thread.flags, thread.name)
        self._sums[role] = ThreadTotals(
            *(
                total + now - then
                for total, now, then in zip(self._sums[role], thread.totals, before, strict=True)
            )
        )
        if isinstance(thread, ThreadExit):
            self._last.pop(tid, None)
        else:
            self._last[tid] = thread.totals

    def seconds_by_state(self) -> Mapping[tuple[str, str], float]:
        """Return seconds by role and state."""
        return self._seconds({state.value: name for state, name in STATE_FIELDS.items()})

    def seconds_by_aggressor(self) -> Mapping[tuple[str, str], float]:
        """Return seconds of runnable time by role and what ran instead."""
        return self._seconds({kind.value: name for kind, name in KIND_FIELDS.items()})

    def _seconds(self, fields: Mapping[str, str]) -> dict[tuple[str, str], float]:
        return {
            (role.value, label): getattr(totals, name) / 1e9
            for role, totals in self._sums.items()
            for label, name in fields.items()
        }
