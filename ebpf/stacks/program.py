"""The loaded stack program: its maps, and one clock event on each CPU.

Owns program, events and descriptors. Must not know: names of functions, ranks' records, OTLP.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from rootwalk.ebpf.clock_events import online_cpus, open_clock, set_clock
from rootwalk.ebpf.libbpf import BpfMap, BpfObject
from rootwalk.ebpf.stacks.interpreters import Interpreter
from rootwalk.ebpf.stacks.records import (
    CONFIG,
    DROP_REASONS,
    INTERPRETER,
    WAIT,
    WINDOW_KEY,
    Chain,
    Counter,
    Note,
    StackRecord,
    decode_chain,
    decode_note,
    decode_record,
)

__all__ = ["MAX_HZ", "StackProgram"]

MAX_HZ = 99
# To which a sample's phase is known. Samples of a thread are 10 ms apart: longer slices would hardly join any.
DEFAULT_SLICE_NS = 1_000_000
# Of a thread, waits in 100 ms that get a stack: 200 a second, 2 ms.
WAITS_WINDOW = 20
# What comes in 2 s: 99 samples a second, and waits of one thread in a slice of time each; on few CPUs, which ranks may
# keep from the agent, in 15 s. Looking through an empty map of 16,384 places takes 0.3 ms; it holds 2 MB.
SAMPLES_PER_CPU, MIN_SAMPLES = 1024, 16_384
TICK = "take_tick"
NO_CFRAME = 0xFFFFFFFF
KEY = struct.Struct("<I")
NAME = struct.Struct("<Q")
COUNT = struct.Struct("<Q")


class StackProgram:
    """The program, which takes stacks from its beginning to `close`.

    Args:
        hz: Samples a second and CPU, 1 to 99.
        targets: The table of watched processes; None for one of its own, `maps["targets"]`.
        slice_ns: Length of the slices of time that samples are told apart by; 0 for none.
        has_off_cpu: Follow waits too.
        waits_window: How many waits of a thread in 100 ms get a stack.
        left_out: Slots of ranks of which none are taken, from the first moment on.

    Raises:
        UnavailableError: With a `Reason` when it cannot be loaded here.
    """

    def __init__(
        self,
        hz: int,
        targets: BpfMap | None = None,
        slice_ns: int = DEFAULT_SLICE_NS,
        *,
        has_off_cpu: bool = True,
        waits_window: int = WAITS_WINDOW,
        left_out: frozenset[int] = frozenset(),
    ) -> None:
        self.slice_ns = slice_ns
        cpus = online_cpus()

        def configure(opened: BpfObject) -> None:
            if targets is not None:
                opened.share(targets)
            opened.set_max_entries("samples", max(len(cpus) * SAMPLES_PER_CPU, MIN_SAMPLES))
            opened.set_initial(".rodata", CONFIG.pack(slice_ns, has_off_cpu, waits_window))

        path = Path(str(files("rootwalk.ebpf.programs") / "stacks.bpf.o"))
        self._object = BpfObject(path, configure, by_hand=(TICK,))
        self.maps = self._object.maps
        self._events: list[int] = []
        self._left_out: frozenset[int] = frozenset()
        self._spaces = 0
        try:
            self.leave_out(left_out)
            for cpu in cpus:
                self._attach(open_clock(cpu, hz))
        except BaseException:
            self.close()
            raise
        self.hz = hz

    def _attach(self, event: int) -> None:
        try:
            self._object.attach_event(TICK, event)
        except BaseException:
            os.close(event)
            raise
        self._events.append(event)  # closed with the object

    def set_rate(self, hz: int) -> None:
        """Take so many samples a second and CPU from now on, 1 to 99."""
        if hz != self.hz:
            for event in self._events:
                set_clock(event, hz)
            self.hz = hz

    def leave_out(self, slots: frozenset[int]) -> None:
        """Take no stacks of these ranks from now on, of all others again; those beyond 4,096 are taken all the same."""
        if slots == self._left_out:
            return
        left_out = self.maps["left_out"]
        for slot in self._left_out - slots:
            left_out.delete(KEY.pack(slot))
        for slot in sorted(slots - self._left_out):
            with contextlib.suppress(OSError):
                left_out.write(KEY.pack(slot), KEY.pack(1))
        self._left_out = slots

    def teach(self, pid: int, python: Interpreter) -> None:
        """Let the stacks of a process's Python be walked; nothing happens when 4,096 processes are known."""
        layout = python.layout
        cframe = NO_CFRAME if layout.frame_in_cframe is None else layout.frame_in_cframe
        value = INTERPRETER.pack(
            python.runtime,
            layout.interpreters_head,
            layout.threads_head,
            layout.thread_next,
            layout.thread_native_id,
            layout.thread_frame,
            cframe,
            layout.frame_code,
            layout.frame_previous,
            layout.frame_owner,
            0,
        )
        try:
            self.maps["interpreters"].write(KEY.pack(pid), value)
        except OSError:
            return

    def unwind(self, pid: int) -> None:
        """Let a process's frames be left by rules; a forked child whose parent's are known goes by the same."""
        spaces = self.maps["spaces"]
        if spaces.read(KEY.pack(pid)) is None:
            self._spaces += 1
            with contextlib.suppress(OSError):
                spaces.write(KEY.pack(pid), KEY.pack(self._spaces))

    def notes(self) -> list[Note]:
        """Return where rules were missing since the last call."""
        return [decode_note(*pair) for pair in self.maps["notes"].items(take=True)]

    def teach_window(self, space: int, number: int, window: bytes) -> None:
        """Say what rules hold in a window; the kernel keeps those that are met."""
        with contextlib.suppress(OSError):
            self.maps["windows"].write(WINDOW_KEY.pack(space, 0, number), window)

    def forget(self, pid: int) -> None:
        """Do not walk a process's Python any more; safe when it is not known."""
        for name in ("interpreters", "spaces"):
            self.maps[name].delete(KEY.pack(pid))

    def take(self) -> list[StackRecord]:
        """Return the samples since the last call, and remove them."""
        return [decode_record(*pair) for pair in self.maps["samples"].items(take=True)]

    def wait(self, pid: int) -> tuple[int, bytes] | None:
        """Return since when a process's first thread waits (CLOCK_MONOTONIC, ns) and the key of its sample; or None."""
        value = self.maps["waits"].read(KEY.pack(pid))
        if value is None:
            return None
        since_ns, _, _, _, sample = WAIT.unpack(value)
        return (since_ns, sample) if since_ns else None

    def chain(self, name: int) -> Chain | None:
        """Return a chain by its name; None when it has made room for others."""
        data = self.maps["chains"].read(NAME.pack(name))
        return decode_chain(data) if data is not None else None

    def counts(self) -> dict[Counter, int]:
        """Return what was counted since the program was loaded."""
        counters = self.maps["counters"]
        return {one: COUNT.unpack(counters.read(KEY.pack(one)) or bytes(8))[0] for one in Counter}

    def losses(self) -> dict[str, int]:
        """Return what the program could not keep since it was loaded, by `rootwalk.drop.reason`."""
        counts = self.counts()
        return {reason: counts[counter] for counter, reason in DROP_REASONS.items()}

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each program, ns; nothing where the kernel keeps no statistics."""
        return self._object.run_time_ns()

    def close(self) -> None:
        """Stop the clocks, detach and unload; safe twice."""
        self._events = []
        self._object.close()
