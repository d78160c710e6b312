"""Whether the host is short of memory: pages swapped, faults that waited for a disk, allocations that had to stall.

What counts: events of the whole host since boot. A stall of an allocation is a thread that had to free memory itself
before it got any (direct reclaim), or had to move pages together for a large one (compaction); each is a wait of
microseconds to seconds in whoever allocates. A kill is a process that the kernel ended because memory was short, of
the host or of a control group. What does not count: for how long they stalled, and whose thread it was.

Where: /proc/vmstat. Oldest kernel: any; kills since 4.13. Absent: what the kernel is not built to count (swap,
compaction).
Cost: 100 us a reading.

Source: include/linux/vm_event_item.h, mm/vmstat.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rootwalk.ebpf.availability import TIER_NONE
from rootwalk.ebpf.host.missing_file import missing_file
from rootwalk.ebpf.host.pace import Pace
from rootwalk.ebpf.kernel_files import parse_pairs, read_text
from rootwalk.ebpf.reader import Measurement, Place, Reader
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingHostMemoryStall as Stall

__all__ = ["VmstatReader"]

MAJOR, MINOR = "major", "minor"  # of the core convention
SWAPS = (("pswpin", "in"), ("pswpout", "out"))
ALLOCATION_STALLS = "allocstall"  # one counter a memory zone, until 4.10 one for all


class VmstatReader(Reader):
    """Reads /proc/vmstat.

    Raises:
        UnavailableError: NO_COUNTERS.
    """

    sensor = "vmstat"
    tier = TIER_NONE
    backend = "proc"

    def __init__(self, place: Place) -> None:
        self._path = f"{place.root}/proc/vmstat"
        if "pgmajfault" not in parse_pairs(read_text(self._path)):
            raise missing_file("memory events", f'no "pgmajfault" in "{self._path}"')
        self._pace = Pace()

    def measurements(self) -> Iterable[Measurement]:
        """Return events since boot."""
        return self._pace.take(self._read)

    def _read(self) -> Iterator[Measurement]:
        counts = parse_pairs(read_text(self._path))
        for name, direction in SWAPS:
            if name in counts:
                yield Measurement(
                    semconv.METRIC_SYSTEM_PAGING_OPERATIONS,
                    counts[name],
                    {
                        semconv.SYSTEM_PAGING_FAULT_TYPE: MAJOR,
                        semconv.SYSTEM_PAGING_DIRECTION: direction,
                    },
                )
        yield from _faults(counts)
        stalls = [count for name, count in counts.items() if name.startswith(ALLOCATION_STALLS)]
        if stalls:
            yield _stall(Stall.RECLAIM, sum(stalls))
        if "compact_stall" in counts:
            yield _stall(Stall.COMPACTION, counts["compact_stall"])
        if "oom_kill" in counts:
            yield Measurement(semconv.METRIC_TRAINING_HOST_OOM_KILLS, counts["oom_kill"])


def _faults(counts: dict[str, int]) -> Iterator[Measurement]:
    major = counts.get("pgmajfault")
    if major is None:
        return
    faults = {MAJOR: major}
    if "pgfault" in counts:
        faults[MINOR] = counts["pgfault"] - major
    for kind, count in faults.items():
        yield Measurement(
            semconv.METRIC_SYSTEM_PAGING_FAULTS, count, {semconv.SYSTEM_PAGING_FAULT_TYPE: kind}
        )


def _stall(kind: Stall, count: int) -> Measurement:
    return Measurement(
        semconv.METRIC_TRAINING_HOST_MEMORY_STALLS,
        count,
        {semconv.TRAINING_HOST_MEMORY_STALL: kind.value},
    )
