"""Scheduler times from the BPF program: exact, with who ran instead. Libbpf loads it, or BCC.

Owns the loaded program and its maps. Must not know: ranks' records, OTLP.
"""

from __future__ import annotations

import platform
import re
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from rootwalk.ebpf import events
from rootwalk.ebpf.btf import KernelTypes
from rootwalk.ebpf.events import (
    Counter,
    SampledInterval,
    SchedEvent,
    ThreadExit,
    ThreadRecord,
)
from rootwalk.ebpf.libbpf import Program
from rootwalk.ebpf.ring_buffer import RingBuffer
from rootwalk.ebpf.system_calls import call_kinds
from rootwalk.ebpf.targets import COUNT, Targets, read_losses
from rootwalk.ebpf.thread_sums import ThreadSums
from rootwalk.instrumentation.errors import DecodeError

__all__ = ["CoreBackend", "choose_program"]

PROGRAM, OLD_PROGRAM = "sched", "sched_5_15"
# Of sched_switch since 5.18: is_preempted, previous, next, and the state of the previous thread.
STATE_ARGUMENTS = 4
NEVER_NS = 2**63
# As `struct sched_detail`, by level. Waits from so long on (runnable, blocked) are told one by one; the totals, which
# have the shorter ones, are told so often (first threads, their children's, other threads), 0 for never.
# 0: sums only. A phase's times are right to 20 ms; nobody asks about other threads, there are no collectives.
# 1: every stall (1 ms or more) by itself, and every wait that says what was waited for. Sums keep the phases apart.
# 2: everything; a context switch costs 2 to 5 us, what is shorter than 20 us is nobody's wait.
DETAIL_BY_LEVEL = {
    0: (NEVER_NS, NEVER_NS, 20_000_000, 20_000_000, 0),
    1: (1_000_000, 100_000, 5_000_000, 10_000_000, 20_000_000),
    2: (20_000, 20_000, 0, 0, 0),
}
# The ring holds 4 MiB: at 10,000 events a second it is full after 3 s.
POLL_INTERVAL_S = 0.25
DROP_REASONS = {
    Counter.RING_FULL: "bpf_ring_full",
    Counter.LOST_SLICES: "bpf_lost_slices",
    Counter.THREADS_FULL: "bpf_threads_full",
}
DETAIL = struct.Struct("<5Q")
KEY = struct.Struct("<I")
ON, OFF = KEY.pack(1), KEY.pack(0)


def _possible_cpus() -> int:
    """Return one more than the highest CPU number that this kernel can ever use."""
    text = Path("/sys/devices/system/cpu/possible").read_text(encoding="ascii").strip()
    return int(text.replace("-", ",").split(",")[-1]) + 1


def choose_program(release: str = platform.release(), root: Path = Path("/")) -> str:
    """Return the scheduler program for a kernel, its file without `.bpf.c`.

    Before 5.18 a switch does not tell the state of the thread that leaves, unless a distribution has added it.

    Args:
        release: Of the kernel, as `uname -r` says it.
        root: Where /sys is.
    """
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < (5, 18):
        try:
            tells_state = KernelTypes.read(root).count_arguments("sched_switch") == STATE_ARGUMENTS
        except (OSError, DecodeError):
            tells_state = False
        return PROGRAM if tells_state else OLD_PROGRAM
    return PROGRAM


class CoreBackend:
    """The loaded scheduler program.

    Args:
        targets: The watched processes; whose ranks they are comes back in every event. What loaded their program
            loads this one.
        level: How much is told at first, 0 to 2.
        program: Its file without `.bpf.c`; None for the one for this kernel.

    Raises:
        UnavailableError: With a `sensors.Reason` when it cannot be loaded here.
    """

    interval_s = POLL_INTERVAL_S
    told_wait_ns: int | None

    def __init__(self, targets: Targets, level: int = 2, program: str | None = None) -> None:
        self.sensor = targets.loader.name
        self._cpu_count = _possible_cpus()

        def configure(opened: Program) -> None:
            opened.share(targets.map)
            opened.set_initial(".rodata", call_kinds())
            opened.set_max_entries("slices", self._cpu_count)

        self._object = targets.loader.open(program or choose_program(), configure)
        maps = self._object.maps
        self._enabled = maps["enabled"]
        self._threads, self._counters = maps["threads"], maps["counters"]
        self._slices = maps["slices"]
        self._ring = RingBuffer(maps["events"])
        self._detail = next(one for name, one in maps.items() if name.endswith(".data"))
        self._sums = ThreadSums()
        self.set_level(level)
        self._watched: set[int] = set()

    def set_level(self, level: int) -> None:
        """Tell more or less from now on, 0 to 2."""
        detail = DETAIL_BY_LEVEL[level]
        self._detail.write(KEY.pack(0), DETAIL.pack(*detail))
        self.told_wait_ns = detail[1] if detail[1] < NEVER_NS else None
        self._sums.begin(time.monotonic_ns())

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

    def read(self) -> list[SchedEvent | ThreadExit | SampledInterval]:
        """Return what has finished since the last call, each thread's events in order."""
        return self._sums.resolve(self._ring.read(events.decode_ring))

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

    def made_up_switches(self) -> int:
        """Return how many switches the kernel did not tell, and the program told from the runtimes of threads."""
        value = self._counters.read(KEY.pack(Counter.MADE_UP))
        return COUNT.unpack(value)[0] if value else 0

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each program, ns; nothing where the kernel keeps no statistics."""
        return self._object.run_time_ns()

    def close(self) -> None:
        """Detach and unload; safe twice."""
        self._ring.close()
        self._object.close()

    def _forget_threads(self, pid: int) -> None:
        """Begin anew with threads that were followed as those of a child of another rank."""
        for tid, thread in self.children().items():
            if thread.tgid == pid:
                self._threads.delete(KEY.pack(tid))

    def _begin(self) -> None:
        """Forget what ran before a pause, then switch the program on."""
        self._sums.begin(time.monotonic_ns())
        empty = bytes(self._slices.value_bytes)
        for cpu in range(self._cpu_count):
            self._slices.write(KEY.pack(cpu), empty)
        self._enabled.write(KEY.pack(0), ON)
