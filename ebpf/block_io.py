"""What ranks read from and write to disks, how long it took, and the same for everybody else.

Owns the loaded program and its maps; mirrors `programs/block_io.h`, which says what counts. One read of a map every
2 s: disks x directions x ranks. A disk has the name that the kernel gives it: sysfs does not list all of them (paths of
a multipath NVMe disk). Must not know: steps, OTLP.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rootwalk.ebpf.availability import TIER_CAPABILITIES
from rootwalk.ebpf.kernel_hooks import find_missing_hooks
from rootwalk.ebpf.libbpf import BpfObject
from rootwalk.ebpf.reader import Measurement, Place, Reader
from rootwalk.ebpf.targets import open_program, read_losses
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingDiskDurationClass

__all__ = ["KEY", "TOTALS", "BlockIoReader", "BlockTotals", "decode_totals"]

# struct block_key, block_totals: bytes, queue, device, requests by duration class, name
KEY = struct.Struct("<III")
TOTALS = struct.Struct("<3Q6Q32s")
# include/linux/kdev_t.h
MINOR_BITS = 20
MINOR_MASK = (1 << MINOR_BITS) - 1
EVERYBODY_ELSE = 0
CLASSES = tuple(TrainingDiskDurationClass)
DIRECTIONS = ("read", "write")


# In the order of `enum block_counter`.
DROP_REASONS = ("bpf_block_unmatched", "bpf_block_totals_full")


class BlockTotals(NamedTuple):
    """What one rank asked of one disk in one direction.

    Attributes:
        disk: Its name, else its numbers.
        slot: The rank; 0 for everybody else.
        direction: A value of `disk.io.direction`.
        sent_bytes: Read or written.
        queue_ns: From requests' creation until their driver had them.
        device_ns: From there to their end.
        operations: Number of requests by duration, shortest first.
    """

    disk: str
    slot: int
    direction: str
    sent_bytes: int
    queue_ns: int
    device_ns: int
    operations: tuple[int, ...]


def decode_totals(key: bytes, value: bytes) -> BlockTotals:
    """Return one entry of the `totals` map."""
    device, slot, is_write = KEY.unpack(key)
    sent_bytes, queue_ns, device_ns, *operations, name = TOTALS.unpack(value)
    disk = name.split(b"\0", 1)[0].decode(errors="replace")
    return BlockTotals(
        disk or f"{device >> MINOR_BITS}:{device & MINOR_MASK}",
        slot,
        DIRECTIONS[is_write],
        sent_bytes,
        queue_ns,
        device_ns,
        tuple(operations),
    )


def _measure(totals: BlockTotals) -> list[Measurement]:
    slot = None if totals.slot == EVERYBODY_ELSE else totals.slot
    attributes = {
        semconv.SYSTEM_DEVICE: totals.disk,
        semconv.DISK_IO_DIRECTION: totals.direction,
    }
    found = [
        Measurement(
            semconv.METRIC_TRAINING_DISK_OPERATIONS,
            count,
            {**attributes, semconv.TRAINING_DISK_DURATION_CLASS: duration.value},
            slot,
        )
        for duration, count in zip(CLASSES, totals.operations, strict=True)
        if count
    ]
    values = (
        (semconv.METRIC_TRAINING_DISK_IO, totals.sent_bytes),
        (semconv.METRIC_TRAINING_DISK_QUEUE_TIME, totals.queue_ns / 1e9),
        (semconv.METRIC_TRAINING_DISK_DEVICE_TIME, totals.device_ns / 1e9),
    )
    return found + [Measurement(metric, value, attributes, slot) for metric, value in values]


class BlockIoReader(Reader):
    """The loaded program.

    Args:
        place: Where to look.

    Raises:
        UnavailableError: With a `Reason` when it cannot be loaded here.
    """

    sensor = "block_io"
    tier = TIER_CAPABILITIES
    backend = "core"

    def __init__(self, place: Place) -> None:
        targets = place.need_targets()

        has_start = not find_missing_hooks(["block_io_start"], place.root)

        def configure(opened: BpfObject) -> None:
            opened.leave_out("on_rq_insert" if has_start else "on_rq_start")
            opened.share(targets.map)

        self._object = open_program("block_io", configure)
        self._totals = self._object.maps["totals"]
        self._counters = self._object.maps["counters"]
        self._slot_by_pid: dict[int, int] = {}

    def watch(self, pid: int, slot: int) -> None:
        """Keep the sums of a rank."""
        self._slot_by_pid[pid] = slot

    def forget(self, pid: int) -> None:
        """Let go of a rank's sums with its last process."""
        self._slot_by_pid.pop(pid, None)

    def read(self) -> list[BlockTotals]:
        """Return all sums since the program was loaded."""
        slots = {EVERYBODY_ELSE, *self._slot_by_pid.values()}
        found = []
        for key, value in self._totals.items():
            totals = decode_totals(key, value)
            if totals.slot in slots:
                found.append(totals)
            else:
                self._totals.delete(key)
        return found

    def measurements(self) -> Iterable[Measurement]:
        """Return number, bytes and time of requests by disk, direction and rank; the host's are everybody else's."""
        return [one for totals in self.read() for one in _measure(totals)]

    def losses(self) -> Mapping[str, int]:
        """Return what the program could not keep since it was loaded."""
        return read_losses(self._counters, DROP_REASONS)

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each program, ns; nothing where the kernel keeps no statistics."""
        return self._object.run_time_ns()

    def close(self) -> None:
        """Detach and unload; safe twice."""
        self._object.close()
