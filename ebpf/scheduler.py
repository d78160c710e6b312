"""The seam between the agent and whatever tells it scheduler times: BPF (`core_backend`) or /proc (`proc_backend`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from rootwalk.ebpf.core_backend import CoreBackend
from rootwalk.ebpf.events import SampledInterval, SchedEvent, ThreadExit, ThreadRecord
from rootwalk.ebpf.proc_backend import ProcBackend
from rootwalk.ebpf.targets import Targets
from rootwalk.instrumentation.errors import UnavailableError

__all__ = ["SchedulerReader", "SchedulerRecord", "open_scheduler"]

SchedulerRecord = SchedEvent | SampledInterval | ThreadExit


class SchedulerReader(Protocol):
    """Follows the threads of chosen processes.

    `sensor` is a value of `semconv.TrainingThreadSensor`; `interval_s` is how often `read` wants to be called. Waits
    from `told_wait_ns` on are told with what was waited for, at the present level; None where none is.
    """

    sensor: str
    interval_s: float
    told_wait_ns: int | None

    def set_level(self, level: int) -> None:
        """Tell more or less from now on: 0 sums only, 1 stalls and waits of 0.1 ms or more one by one, 2 everything."""
        ...

    def watch(self, pid: int, slot: int, *, is_child: bool = False) -> None:
        """Follow all threads of a process; `slot` (1 or more) comes back in every record."""
        ...

    def forget(self, pid: int) -> None:
        """Stop following a process; safe when it is not followed."""
        ...

    def read(self) -> Sequence[SchedulerRecord]:
        """Return what has happened since the last call, each thread's records in order."""
        ...

    def threads(self) -> Mapping[int, ThreadRecord]:
        """Return every followed thread that is alive, by thread id."""
        ...

    def children(self) -> Mapping[int, ThreadRecord] | None:
        """Return the followed threads of ranks' children that are alive, by thread id; None when it cannot tell."""
        ...

    def losses(self) -> Mapping[str, int]:
        """Return what was lost since the start, by `rootwalk.drop.reason`."""
        ...

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each kernel program, ns; nothing where it is not known."""
        ...

    def close(self) -> None:
        """Stop; safe twice."""
        ...


def open_scheduler(
    targets: Targets | None, without: Collection[str] = ()
) -> SchedulerReader | None:
    """Return the best reader that this machine allows; None when there is none.

    Args:
        targets: What BPF programs watch; None where they cannot be used.
        without: Sensors that the user switched off: `sched`, `procfs`.
    """
    if "sched" in without:
        return None
    if targets is not None:
        try:
            return CoreBackend(targets)
        except UnavailableError:
            pass  # `sensors` tells why; the coarser reader goes on
    return None if "procfs" in without else ProcBackend()
