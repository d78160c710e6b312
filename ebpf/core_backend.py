"""Scheduler times from the BPF program: exact, with who ran instead.

Owns the loaded program and its maps. Must not know: ranks' records, OTLP.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

from rootwalk.ebpf import events
from rootwalk.ebpf.events import Counter, SchedEvent, ThreadExit, ThreadRecord
from rootwalk.ebpf.libbpf import BpfObject
from rootwalk.ebpf.ring_buffer import RingBuffer
from rootwalk.ebpf.system_calls import call_kinds
from rootwalk.ebpf.targets import Targets, open_program, read_losses
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
ON, OFF = KEY.pack(1), KEY.pack(0)


def _possible_cpus() -> int:
    """Return one more than the highest CPU number that this kernel can ever use."""
    text = Path("/sys/devices/system/cpu/possible").read_text(encoding="ascii").strip()
    return int(text.replace("-", ",").split(",")[-1]) + 1


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
        self._ring = RingBuffer(maps["events"])
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
        return self._ring.read(events.decode_ring)

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
        return read_losses(self._counters, tuple(DROP_REASONS.values()))

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each program, ns; nothing where the kernel keeps no statistics."""
        return self._object.run_time_ns()

    def close(self) -> None:
        """Detach and unload; safe twice."""
        self._ring.close()
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
