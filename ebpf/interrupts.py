"""Time that interrupts steal from ranks' threads, from the BPF program `interrupts.bpf.c`.

Owns the loaded program and its maps. What counts, what does not, and what it costs is at the head of that file.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rootwalk.ebpf.availability import TIER_CAPABILITIES
from rootwalk.ebpf.interrupt_names import InterruptNames
from rootwalk.ebpf.kernel_hooks import find_missing_hooks
from rootwalk.ebpf.libbpf import BpfObject
from rootwalk.ebpf.reader import Cause, Measurement, Place, Reader, Spell
from rootwalk.ebpf.ring_buffer import RingBuffer, find_records
from rootwalk.ebpf.targets import KEY, open_program, read_losses
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingInterruptKind, TrainingThreadRole

__all__ = ["InterruptReader", "InterruptTotal"]

# Program -> its hook; both ends of each are there or neither.
LOCAL_HOOKS = {
    f"on_{name}_{end}": f"{hook}_{edge}"
    for name, hook in (
        ("timer", "local_timer"),
        ("resch", "reschedule"),
        ("call", "call_function"),
        ("call1", "call_function_single"),
        ("work", "irq_work"),
    )
    for end, edge in (("begin", "entry"), ("end", "exit"))
}
# In the order of `enum interrupt_kind`, `interrupt_role` and `interrupt_counter`.
KINDS = (TrainingInterruptKind.DEVICE, TrainingInterruptKind.SOFT, TrainingInterruptKind.LOCAL)
ROLES = (TrainingThreadRole.MAIN, TrainingThreadRole.OTHER, TrainingThreadRole.LOADER_WORKER)
DROP_REASONS = ("bpf_interrupts_full", "bpf_interrupt_windows_full", "bpf_interrupt_ring_full")
TOTAL_KEY = struct.Struct("<IHHI")
TOTAL = struct.Struct("<QQ")
SPELL_EVENT = struct.Struct("<QQQII")


class InterruptTotal(NamedTuple):
    """What one interrupt took from threads of one role since the start, and how often it came."""

    slot: int
    role: TrainingThreadRole
    kind: TrainingInterruptKind
    number: int
    stolen_ns: int
    interrupts: int


def decode_spells(data: bytes) -> tuple[list[tuple[int, int, int, int]], int]:
    """Return start, end, stolen time (ns) and slot of each record of a piece of the ring, and the bytes they took."""
    found, used = find_records(data)
    records = []
    for first, _ in found:
        start_ns, end_ns, stolen_ns, slot, _ = SPELL_EVENT.unpack_from(data, first)
        records.append((start_ns, end_ns, stolen_ns, slot))
    return records, used


class InterruptReader(Reader):
    """The loaded program, and what it has told."""

    sensor = "interrupts"
    tier = TIER_CAPABILITIES
    backend = "core"

    def __init__(self, place: Place) -> None:
        targets = place.need_targets().map
        missing = find_missing_hooks(LOCAL_HOOKS.values(), place.root)

        def configure(opened: BpfObject) -> None:
            opened.share(targets)
            opened.leave_out(*(name for name, hook in LOCAL_HOOKS.items() if hook in missing))

        self._object = open_program("interrupts", configure)
        maps = self._object.maps
        self._totals, self._windows = maps["totals"], maps["windows"]
        self._counters = maps["counters"]
        self._ring = RingBuffer(maps["spells"])
        self._names = InterruptNames(place.root)
        self._slots: dict[int, int] = {}
        self._told_until_ns: dict[int, int] = {}

    def watch(self, pid: int, slot: int) -> None:
        """Keep the sums of a rank for as long as one of its processes is followed."""
        self._slots[pid] = slot

    def forget(self, pid: int) -> None:
        """Stop following a process; safe when it is not followed."""
        if self._slots.pop(pid, None) is not None:
            self._windows.delete(KEY.pack(pid))

    def totals(self) -> list[InterruptTotal]:
        """Return the sums of all watched ranks, and forget those of ranks that have ended."""
        watched = set(self._slots.values())
        for slot in self._told_until_ns.keys() - watched:
            del self._told_until_ns[slot]
        found = []
        for key, value in self._totals.items():
            slot, kind, role, number = TOTAL_KEY.unpack(key)
            if slot in watched:
                found.append(
                    InterruptTotal(slot, ROLES[role], KINDS[kind], number, *TOTAL.unpack(value))
                )
            else:
                self._totals.delete(key)
        return found

    def measurements(self) -> Iterable[Measurement]:
        """Return the time by rank, role and interrupt."""
        stolen_ns: Counter[tuple[int, str, str, str]] = Counter()
        for total in self.totals():
            name = self._names.name(total.kind, total.number)
            stolen_ns[total.slot, total.role, total.kind, name] += total.stolen_ns
        for (slot, role, kind, name), sum_ns in stolen_ns.items():
            attributes = {
                semconv.TRAINING_THREAD_ROLE: str(role),
                semconv.TRAINING_INTERRUPT_KIND: str(kind),
                semconv.TRAINING_INTERRUPT_NAME: name,
            }
            metric = semconv.METRIC_TRAINING_THREAD_INTERRUPT_TIME
            yield Measurement(metric, sum_ns / 1e9, attributes, slot)

    def spells(self) -> Iterable[Spell]:
        """Return what first threads lost: each at most about 10 ms long, none over another of its slot."""
        for start_ns, end_ns, stolen_ns, slot in self._ring.read(decode_spells):
            begin_ns = max(start_ns, self._told_until_ns.get(slot, 0))
            if end_ns > begin_ns:
                self._told_until_ns[slot] = end_ns
                lost_ns = min(stolen_ns, end_ns - begin_ns)
                yield Spell(begin_ns, end_ns, lost_ns, Cause.INTERRUPT, slot)

    def losses(self) -> Mapping[str, int]:
        """Return what found no room in the kernel's maps."""
        return read_losses(self._counters, DROP_REASONS)

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each program, ns; nothing where the kernel keeps no statistics."""
        return self._object.run_time_ns()

    def close(self) -> None:
        """Detach and unload; safe twice."""
        self._ring.close()
        self._object.close()
