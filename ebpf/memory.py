"""How long ranks' threads looked for free memory themselves: direct reclaim, reclaim of their group, compaction.

Owns the loaded program and its maps; mirrors `programs/memory.h`, which says what counts. Sums come from a map every
2 s; when a rank's first thread lost how much from a ring twice a second. Must not know: steps, OTLP.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum

from rootwalk.ebpf.availability import TIER_CAPABILITIES
from rootwalk.ebpf.kernel_hooks import find_missing_hooks
from rootwalk.ebpf.libbpf import BpfObject
from rootwalk.ebpf.reader import Cause, Measurement, Place, Reader, Spell
from rootwalk.ebpf.ring_buffer import RingBuffer, find_records
from rootwalk.ebpf.targets import open_program, read_losses
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingMemoryReclaimKind, TrainingThreadRole

__all__ = ["KEY", "SPELL", "TOTAL", "Kind", "MemoryReader", "Thread", "decode_spells"]

SLOT = struct.Struct("<I")
# struct reclaim_key, reclaim_total, reclaim_spell
KEY = struct.Struct("<IBBH")
TOTAL = struct.Struct("<QQ")
SPELL = struct.Struct("<QQQII")


class Kind(IntEnum):
    """`enum reclaim_kind`."""

    DIRECT = 0
    MEMCG = 1
    COMPACTION = 2


class Thread(IntEnum):
    """`enum thread_kind`."""

    OTHER = 0
    MAIN = 1
    CHILD = 2


KIND_NAMES = {
    Kind.DIRECT: TrainingMemoryReclaimKind.DIRECT,
    Kind.MEMCG: TrainingMemoryReclaimKind.CGROUP,
    Kind.COMPACTION: TrainingMemoryReclaimKind.COMPACTION,
}
ROLES = {
    Thread.OTHER: TrainingThreadRole.OTHER,
    Thread.MAIN: TrainingThreadRole.MAIN,
    Thread.CHILD: TrainingThreadRole.LOADER_WORKER,
}
# Hook -> program, of what a kernel without memory control groups or without compaction does not have, and never does.
OPTIONAL_HOOKS = {
    "mm_vmscan_memcg_reclaim_begin": "on_memcg",
    "mm_vmscan_memcg_reclaim_end": "on_memcg_end",
    "mm_compaction_begin": "on_compact",
    "mm_compaction_end": "on_compact_end",
}
# In the order of `enum memory_counter`.
DROP_REASONS = ("bpf_memory_ring_full", "bpf_memory_threads_full", "bpf_memory_totals_full")


def decode_spells(data: bytes) -> tuple[list[Spell], int]:
    """Return the spells in a piece of the ring, and how many bytes of it they took."""
    found, used = find_records(data)
    spells = []
    for offset, _ in found:
        start_ns, end_ns, lost_ns, slot, _ = SPELL.unpack_from(data, offset)
        spells.append(Spell(start_ns, end_ns, lost_ns, Cause.RECLAIM, slot))
    return spells, used


class MemoryReader(Reader):
    """The loaded program.

    Args:
        place: Where to look.

    Raises:
        UnavailableError: With a `Reason` when it cannot be loaded here.
    """

    sensor = "memory"
    tier = TIER_CAPABILITIES
    backend = "core"

    def __init__(self, place: Place) -> None:
        targets = place.need_targets()
        missing = find_missing_hooks(OPTIONAL_HOOKS, place.root)

        def configure(opened: BpfObject) -> None:
            opened.leave_out(*(OPTIONAL_HOOKS[hook] for hook in missing))
            opened.share(targets.map)

        self._object = open_program("memory", configure)
        maps = self._object.maps
        self._totals, self._untold = maps["totals"], maps["untold"]
        self._counters = maps["counters"]
        self._ring = RingBuffer(maps["spells"])
        self._slot_by_pid: dict[int, int] = {}

    def watch(self, pid: int, slot: int) -> None:
        """Keep the sums of a rank."""
        self._slot_by_pid[pid] = slot

    def forget(self, pid: int) -> None:
        """Let go of a rank's sums with its last process."""
        self._slot_by_pid.pop(pid, None)

    def measurements(self) -> Iterable[Measurement]:
        """Return number and time of every kind of reclaim by kind of thread."""
        slots = set(self._slot_by_pid.values())
        found = []
        for key, value in self._totals.items():
            slot, kind, thread, _ = KEY.unpack(key)
            if slot not in slots:
                self._totals.delete(key)
                self._untold.delete(SLOT.pack(slot))
                continue
            count, time_ns = TOTAL.unpack(value)
            attributes = {
                semconv.TRAINING_MEMORY_RECLAIM_KIND: KIND_NAMES[kind].value,
                semconv.TRAINING_THREAD_ROLE: ROLES[thread].value,
            }
            found += [
                Measurement(semconv.METRIC_TRAINING_MEMORY_RECLAIMS, count, attributes, slot),
                Measurement(
                    semconv.METRIC_TRAINING_MEMORY_RECLAIM_TIME, time_ns / 1e9, attributes, slot
                ),
            ]
        return found

    def spells(self) -> Iterable[Spell]:
        """Return what ranks' first threads lost in reclaims since the last call."""
        return self._ring.read(decode_spells)

    def losses(self) -> Mapping[str, int]:
        """Return what the program could not keep since it was loaded."""
        return read_losses(self._counters, DROP_REASONS)

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each program, ns; nothing where the kernel keeps no statistics."""
        return self._object.run_time_ns()

    def close(self) -> None:
        """Detach and unload; safe twice."""
        self._ring.close()
        self._object.close()
