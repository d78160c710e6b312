"""What each disk of the host did: bytes, operations, the time they took together, the time it was busy.

What counts: requests that the block layer has completed since boot, of whole physical devices. A mean latency is the
growth of `system.disk.operation_time` over that of `system.disk.operations`. What does not count: partitions, loop
devices, RAM disks, and devices made of others (md, dm), whose requests would count twice; discards and flushes; which
process a request was for, and how latencies are spread.

Where: /proc/diskstats; /sys/block/<name>/device tells what is physical. Oldest kernel: any.
Cost: 50 us a reading with 1 disk; 0.6 ms with 32 and their partitions (a copy of the files, in memory).

Source: Documentation/admin-guide/iostats.rst.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rootwalk.ebpf.availability import TIER_NONE, Reason
from rootwalk.ebpf.host.limited import LimitedNames
from rootwalk.ebpf.host.missing_file import missing_file
from rootwalk.ebpf.host.pace import Pace
from rootwalk.ebpf.kernel_files import parse_number, read_text
from rootwalk.ebpf.reader import Measurement, Place, Reader
from rootwalk.instrumentation import semconv

__all__ = ["DiskCounts", "DisksReader", "parse_disks"]

SECTOR_BYTES = 512  # in this file, whatever the device's own are
MSEC_PER_S = 1_000
# Storage servers have dozens; a training host has up to 16 NVMe devices.
MAX_DISKS = 32
# Of a line: major, minor and name come before.
FIRST_COUNT, LAST_COUNT = 3, 13


@dataclass(frozen=True, slots=True)
class DiskCounts:
    """What one device has counted since boot."""

    reads: int
    read_sectors: int
    read_ms: int
    writes: int
    written_sectors: int
    write_ms: int
    busy_ms: int


def parse_disks(text: str) -> dict[str, DiskCounts]:
    """Return what each block device has counted."""
    disks = {}
    for line in text.splitlines():
        words = line.split()
        numbers = [parse_number(word) for word in words[FIRST_COUNT:LAST_COUNT]]
        counts = [number for number in numbers if number is not None]
        if len(counts) == LAST_COUNT - FIRST_COUNT:
            reads, _, read_sectors, read_ms, writes, _, sectors, write_ms, _, busy_ms = counts
            disks[words[2]] = DiskCounts(
                reads, read_sectors, read_ms, writes, sectors, write_ms, busy_ms
            )
    return disks


class DisksReader(Reader):
    """Reads /proc/diskstats.

    Raises:
        UnavailableError: NO_COUNTERS or NO_DEVICE.
    """

    sensor = "disks"
    tier = TIER_NONE
    backend = "proc"

    def __init__(self, place: Place) -> None:
        self._path = f"{place.root}/proc/diskstats"
        self._blocks = Path(place.root, "sys/block")
        self._is_physical: dict[str, bool] = {}
        self._names = LimitedNames(MAX_DISKS)
        if not Path(self._path).exists():
            raise missing_file("disks", f'no "{self._path}"')
        if not self._physical(parse_disks(read_text(self._path))):
            raise missing_file("disks", "no physical block device", Reason.NO_DEVICE)
        self._pace = Pace()

    def measurements(self) -> Iterable[Measurement]:
        """Return what each disk has counted since boot."""
        return self._pace.take(self._read)

    def losses(self) -> Mapping[str, int]:
        """Return how many disks were left out."""
        return self._names.losses()

    def _physical(self, disks: Iterable[str]) -> list[str]:
        """Return the disks that are devices of their own; asked once for each name while it is there."""
        known = self._is_physical
        self._is_physical = {
            name: known[name] if name in known else self._has_device(name) for name in disks
        }
        return self._names.take(name for name, is_one in self._is_physical.items() if is_one)

    def _has_device(self, name: str) -> bool:
        return (self._blocks / name.replace("/", "!") / "device").exists()

    def _read(self) -> Iterator[Measurement]:
        disks = parse_disks(read_text(self._path))
        for name in self._physical(disks):
            yield from _measure(name, disks[name])


def _measure(name: str, counts: DiskCounts) -> Iterator[Measurement]:
    device = {semconv.SYSTEM_DEVICE: name}
    yield Measurement(semconv.METRIC_SYSTEM_DISK_IO_TIME, counts.busy_ms / MSEC_PER_S, device)
    for direction, operations, sectors, time_ms in (
        ("read", counts.reads, counts.read_sectors, counts.read_ms),
        ("write", counts.writes, counts.written_sectors, counts.write_ms),
    ):
        attributes = {**device, semconv.DISK_IO_DIRECTION: direction}
        yield Measurement(semconv.METRIC_SYSTEM_DISK_OPERATIONS, operations, attributes)
        yield Measurement(semconv.METRIC_SYSTEM_DISK_IO, sectors * SECTOR_BYTES, attributes)
        yield Measurement(
            semconv.METRIC_SYSTEM_DISK_OPERATION_TIME, time_ms / MSEC_PER_S, attributes
        )
