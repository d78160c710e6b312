"""Scheduler times from the BPF program: exact, with who ran instead.

Owns the loaded program, its maps and the ring that the kernel writes. The ring is mapped and parsed here: one copy and
one pass a poll, where libbpf's own reader makes a call back into Python for every event. Must not know: ranks' records,
OTLP.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from rootwalk.ebpf import events
from rootwalk.ebpf.events import Counter, SchedEvent, ThreadExit, ThreadRecord
from rootwalk.ebpf.libbpf import BpfObject
from rootwalk.ebpf.system_calls import call_kinds
from rootwalk.ebpf.targets import Targets, open_program
from rootwalk.instrumentation.semconv import TrainingThreadSensor

__all__ = ["CoreBackend"]

# A context switch costs 2 to 5 us; shorter intervals than this are summed in the kernel and not sent one by one.
DEFAULT_MIN_RUNNABLE_NS = 20_000
DEFAULT_MIN_BLOCKED_NS = 20_000
# The ring holds 4 MiB: at 10,000 events a second it is full after 3 s.
POLL_INTERVAL_S = 0.25
DROP_REASONS = {
    Counter.RING_FULL: "bpf_ring_full",
    Counter.LOST_SLICES: "bpf_lost_slices",
    Counter.THREADS_FULL: "bpf_threads_full",
}
CONFIG = struct.Struct("<QQII")
KEY = struct.Struct("<I")
COUNT = struct.Struct("<Q")
ON, OFF = KEY.pack(1), KEY.pack(0)


def _possible_cpus() -> int:
    """Return one more than the highest CPU number that this kernel can ever use."""
    text = Path("/sys/devices/system/cpu/possible").read_text(encoding="ascii").strip()
    return int(text.replace("-", ",").split(",")[-1]) + 1


class _Ring:
    """The consumer's end of a BPF ring buffer, by its memory map.

    Source: kernel/bpf/ringbuf.c: page 0 is the consumer's position (writable), page 1 the producer's, then the data
    twice in a row, so that a record that wraps can be read in one piece.
    """

    def __init__(self, descriptor: int, data_bytes: int) -> None:
        page = mmap.PAGESIZE
        self._mask = data_bytes - 1
        self._consumer_page = mmap.mmap(descriptor, page, mmap.MAP_SHARED)
        self._producer_page = mmap.mmap(
            descriptor, page + 2 * data_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
        )
        # Through a typed view the position is written in one store, as the kernel needs it.
        self._consumed = memoryview(self._consumer_page).cast("Q")
        self._produced = memoryview(self._producer_page)[:8].cast("Q")

    def read(self) -> list[SchedEvent | ThreadExit]:
        consumed = self._consumed[0]
        waiting = self._produced[0] - consumed
        if not waiting:
            return []
        first = mmap.PAGESIZE + (consumed & self._mask)
        records, used = events.decode_ring(self._producer_page[first : first + waiting])
        self._consumed[0] = consumed + used
        return records

    def close(self) -> None:
        self._consumed.release()
        self._produced.release()
        self._consumer_page.close()
        self._producer_page.close()


class CoreBackend:
    """The loaded scheduler program.

    Args:
        targets: The watched processes; whose ranks they are comes back in every event.
        min_runnable_ns: Shorter waits are summed in totals, not reported as events.
        min_blocked_ns: The same for blocked intervals of first threads.
        has_statistics: Switch on the kernel's run-time statistics of BPF programs (about 20 ns a call).

    Raises:
        UnavailableError: With a `sensors.Reason` when it cannot be loaded here.
    """

    sensor = TrainingThreadSensor.CORE.value
    interval_s = POLL_INTERVAL_S

    def __init__(
        self,
        targets: Targets,
        *,
        min_runnable_ns: int = DEFAULT_MIN_RUNNABLE_NS,
        min_blocked_ns: int = DEFAULT_MIN_BLOCKED_NS,
        has_statistics: bool = False,
    ) -> None:
        self._cpu_count = _possible_cpus()
        config = CONFIG.pack(min_runnable_ns, min_blocked_ns, self._cpu_count, 0) + call_kinds()

        def configure(opened: BpfObject) -> None:
            opened.share(targets.map)
            opened.set_initial(".rodata", config)
            opened.set_max_entries("slices", self._cpu_count)

        self._object = open_program("sched", configure)
        maps = self._object.maps
        self._enabled = maps["enabled"]
        self._threads, self._counters = maps["threads"], maps["counters"]
        self._slices = maps["slices"]
        self._ring = _Ring(maps["events"].fd, maps["events"].max_entries)
        self._statistics = self._object.enable_statistics() if has_statistics else None
        self._watched: set[int] = set()

    def watch(self, pid: int, slot: int, *, is_child: bool = False) -> None:
        """Follow all threads of a process that is a target already."""
        if not is_child:
            self._forget_threads(pid)
        if not self._watched:
            self._begin()
        self._watched.add(pid)

    def forget(self, pid: int) -> None:
        """Stop following a process; safe when it is not followed."""
        self._watched.discard(pid)
        if not self._watched:
            self._enabled.write(KEY.pack(0), OFF)

    def read(self) -> list[SchedEvent | ThreadExit]:
        """Return what has finished since the last call, each thread's events in order."""
        return self._ring.read()

    def threads(self) -> dict[int, ThreadRecord]:
        """Return every watched thread that is alive, by thread id."""
        return {
            KEY.unpack(key)[0]: events.decode_thread_record(value)
            for key, value in self._threads.items()
        }

    def children(self) -> dict[int, ThreadRecord]:
        """Return the watched threads of ranks' children, by thread id."""
        return {
            KEY.unpack(key)[0]: events.decode_thread_record(value)
            for key, value in self._threads.items()
            if events.is_child(value)
        }

    def losses(self) -> dict[str, int]:
        """Return what the program could not keep since it was loaded, by `rootwalk.drop.reason`."""
        counts = {}
        for counter, reason in DROP_REASONS.items():
            value = self._counters.read(KEY.pack(counter))
            counts[reason] = COUNT.unpack(value)[0] if value else 0
        return counts

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each program, ns; nothing where the kernel keeps no statistics."""
        return self._object.run_time_ns()

    def close(self) -> None:
        """Detach and unload; safe twice."""
        if self._object.maps:
            self._ring.close()
            self._object.maps = {}
        if self._statistics is not None:
            os.close(self._statistics)
            self._statistics = None
        self._object.close()

    def _forget_threads(self, pid: int) -> None:
        """Begin anew with threads that were followed as those of a child of another rank."""
        for tid, thread in self.children().items():
            if thread.tgid == pid:
                self._threads.delete(KEY.pack(tid))

    def _begin(self) -> None:
        """Forget what ran before a pause, then switch the program on."""
        empty = bytes(self._slices.value_bytes)
        for cpu in range(self._cpu_count):
            self._slices.write(KEY.pack(cpu), empty)
        self._enabled.write(KEY.pack(0), ON)
