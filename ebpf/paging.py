"""Major page faults of ranks: memory that had to be read from a disk or from swap before the program could go on.

What counts: the kernel's own counter of each process of a rank, all of its threads, and what its children that have
ended had counted when it waited for them; since the rank's start. What does not count: faults that find their page in
memory (minor ones), for how long a fault took, and children that ended without being waited for.

Where: /proc/<pid>/stat, fields majflt and cmajflt. The kernel has no tracepoint of a major fault (only of every fault,
on x86), and its counter is exact: to read it costs nothing while there are none. Oldest kernel: any.

Cost: one file a process of a rank every 2 s, 15 us, and 0.05 us for each of its threads.

    rank            12      12      12 + 5     a child that ends is in its own counter until it is waited for,
    child            5       5       -         and in its parent's from then on
                    17      17      17

Source: fs/proc/array.c (`do_task_stat`), kernel/exit.c (`wait_task_zombie`).
"""

from __future__ import annotations

from collections.abc import Iterable

from rootwalk.ebpf.availability import TIER_NONE, Reason
from rootwalk.ebpf.discovery import read_major_faults, read_start_ticks
from rootwalk.ebpf.reader import Measurement, Place, Reader
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import UnavailableError

__all__ = ["PagingReader"]


class PagingReader(Reader):
    """Reads the counters of the processes that are watched.

    Args:
        place: Where to look.

    Raises:
        UnavailableError: NO_PROCFS.
    """

    sensor = "paging"
    tier = TIER_NONE
    backend = "proc"

    def __init__(self, place: Place) -> None:
        self._root = place.root / "proc"
        if not (self._root / "self/stat").exists():
            raise UnavailableError(
                "cannot read page faults: saw no /proc/self/stat; needs /proc",
                reason=Reason.NO_PROCFS,
                hint=Reason.NO_PROCFS.hint,
            )
        self._processes: dict[int, tuple[int, int]] = {}  # pid -> slot, start
        self._faults_by_slot: dict[int, int] = {}

    def watch(self, pid: int, slot: int) -> None:
        """Count a process's faults for a rank."""
        start_ticks = read_start_ticks(pid, self._root)
        if start_ticks is not None:
            self._processes[pid] = slot, start_ticks

    def forget(self, pid: int) -> None:
        """Stop reading a process; what it had is known by who waits for it."""
        self._processes.pop(pid, None)

    def measurements(self) -> Iterable[Measurement]:
        """Return the number of faults of each rank."""
        found: dict[int, int] = {}
        for pid, (slot, start_ticks) in self._processes.items():
            faults = read_major_faults(pid, start_ticks, self._root)
            if faults is not None:
                found[slot] = found.get(slot, 0) + faults
        # A child that has ended and is not waited for yet is in nobody's counter: the sum never goes back.
        before = self._faults_by_slot
        self._faults_by_slot = {
            slot: max(faults, before.get(slot, 0)) for slot, faults in found.items()
        }
        return [
            Measurement(semconv.METRIC_TRAINING_MEMORY_MAJOR_FAULTS, faults, slot=slot)
            for slot, faults in self._faults_by_slot.items()
        ]
