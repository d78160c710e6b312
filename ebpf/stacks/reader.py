"""Stacks with names: what the program tells, symbolised outside the hot path, as samples of one thread.

    program.take() ──▶ records ──▶ chains, by name, once ──▶ frames ──▶ merge ──▶ StackSample

A thread that waits and goes on waiting is told too, once a second; what was told so is not told again at its end.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rootwalk.ebpf.stacks.code_names import CodeNames
from rootwalk.ebpf.stacks.interpreters import Interpreter, InterpreterFinder, Refusal, RefusedError
from rootwalk.ebpf.stacks.kernel_symbols import KernelSymbols
from rootwalk.ebpf.stacks.mappings import Mappings, read_mappings
from rootwalk.ebpf.stacks.merge import merge_frames, trim_wait
from rootwalk.ebpf.stacks.native_symbols import UNKNOWN_NATIVE, NativeSymbols
from rootwalk.ebpf.stacks.process_memory import ProcessMemory
from rootwalk.ebpf.stacks.program import StackProgram
from rootwalk.ebpf.stacks.records import KEY, Chain, StackFlag, StackKind, StackRecord
from rootwalk.ebpf.stacks.records import Counter as ProgramCounter
from rootwalk.ebpf.stacks.unwinding import Unwinding
from rootwalk.instrumentation.profiles import Frame, FrameKind

__all__ = ["StackSample", "StackSource", "Waker"]

REMEMBERED_CHAINS = 8192
REMEMBERED_PROCESSES = 512
# Functions may be made, and libraries loaded, where others were: a chain is read again after so long.
KNOWN_FOR_S = 30.0
# A program that has only begun has not loaded its interpreter yet.
LOOK_AGAIN_S = 5.0
TOLD_AFTER_NS = 1_000_000_000
NOT_TAKEN = Frame(FrameKind.KERNEL, "unknown (waits too often)")
CUT = "unknown (deeper frames cut off)"
LOST = "unknown (stack lost)"

Parts = tuple[tuple[Frame, ...], ...]


class Waker(NamedTuple):
    """The thread of a watched process that ran where a wait ended: its process, its number, its name."""

    pid: int
    tid: int
    name: str


class StackSample(NamedTuple):
    """Samples of one thread in one stack.

    Attributes:
        pid: Process.
        tid: Thread.
        slot: Its rank.
        kind: On the CPU or off it.
        flags: Of the thread.
        mono_ns: When, to a slice's length.
        frames: The innermost first.
        number: How many samples, or waits that ended.
        time_ns: Of waits: how long.
        waker: Of waits that have ended; None where nobody who is watched ran there.
    """

    pid: int
    tid: int
    slot: int
    kind: StackKind
    flags: StackFlag
    mono_ns: int
    frames: tuple[Frame, ...]
    number: int
    time_ns: int
    waker: Waker | None = None


class _Process:
    """What is known of one process."""

    def __init__(self, pid: int, root: Path, interpreters: InterpreterFinder) -> None:
        self._pid, self._root = pid, root
        self.memory: ProcessMemory | None = None
        self.python: Interpreter | None = None
        self.names: CodeNames | None = None
        self.refused: RefusedError | None = None
        self.mappings: Mappings | None = None
        self.mapped_s = float("-inf")
        try:
            self.memory = ProcessMemory(pid, root)
            self.python = interpreters.find(pid, self.memory)
            self.names = CodeNames(self.memory, self.python)
        except OSError as error:
            self.refused = RefusedError(Refusal.GONE, f"cannot read process {pid}: saw {error}")
        except RefusedError as error:
            self.refused = error
        self.seen_s = time.monotonic()

    def is_stale(self, now_s: float) -> bool:
        """Whether it has become another program since it was looked at, or may have its interpreter by now."""
        if self.python is None or self.memory is None:
            return now_s - self.seen_s >= LOOK_AGAIN_S
        return self.memory.word(self.python.runtime) is None

    def map_again(self, now_s: float) -> None:
        """Look at what it has mapped now; what was known stays known when it has ended."""
        if now_s - self.mapped_s >= 1.0:
            self.mapped_s = now_s
            with contextlib.suppress(OSError, ValueError, IndexError):
                self.mappings = read_mappings(self._pid, self._root)

    def close(self) -> None:
        if self.memory is not None:
            self.memory.close()


class StackSource:
    """Owns what is known of processes and files; the program is another's.

    Args:
        program: Where samples come from.
        root: Folder that holds the processes.
    """

    def __init__(self, program: StackProgram, root: Path = Path("/proc")) -> None:
        self._program = program
        self._root = root
        self._kernel = KernelSymbols(root / "kallsyms")
        self._native = NativeSymbols()
        self._unwinding = Unwinding()
        self._interpreters = InterpreterFinder(root)
        self._processes: OrderedDict[int, _Process] = OrderedDict()
        self._chains: OrderedDict[int, tuple[tuple[Frame, ...], float]] = OrderedDict()
        self._merged: OrderedDict[tuple[int, ...], tuple[Parts, tuple[Frame, ...]]] = OrderedDict()
        self._told_ns: dict[tuple[int, int], int] = {}
        self._lost_chains = 0
        self._unread_names = 0
        self.refusals: Counter[str] = Counter()

    def watch(self, pid: int) -> RefusedError | None:
        """Look for a process's interpreter; return why its Python stacks are not read, None where they are.

        Called again for one that is known after it has become another program.
        """
        self.forget(pid)
        process = self._processes[pid] = _Process(pid, self._root, self._interpreters)
        self._program.unwind(pid)
        if process.python is not None:
            self._program.teach(pid, process.python)
        elif process.refused is not None:
            self.refusals[process.refused.reason] += 1
        while len(self._processes) > REMEMBERED_PROCESSES:
            self.forget(next(iter(self._processes)))
        return process.refused

    def forget(self, pid: int) -> None:
        """Let go of a process; safe when it is not known."""
        process = self._processes.pop(pid, None)
        if process is not None:
            self._program.forget(pid)
            if process.names is not None:
                self._unread_names += process.names.unread
            process.close()

    def take(self) -> list[StackSample]:
        """Return the samples since the last call."""
        now_s = time.monotonic()
        windows = self._unwinding.learn(self._program.notes(), self._processes.get)
        for (space, number), window in windows.items():
            self._program.teach_window(space, number, window)
        records = self._program.take()
        samples = [self._sample(self._less_told(record), now_s) for record in records]
        samples += [self._sample(record, now_s) for record in self._go_on_waiting()]
        for pid in {record.tgid for record in records}:
            process = self._processes.get(pid)
            if process is None or process.is_stale(now_s):
                self.watch(
                    pid
                )  # a child that was started meanwhile: its next samples have its Python
        return samples

    def losses(self) -> dict[str, int]:
        """Return what was lost since the start, by `rootwalk.drop.reason`."""
        return {**self._program.losses(), "stacks_lost": self._lost_chains}

    def unknowns(self) -> dict[str, int]:
        """Return what there is in stacks without a name: functions, files, and stacks that were not taken."""
        names = [process.names for process in self._processes.values()]
        unread = self._unread_names + sum(one.unread for one in names if one is not None)
        counts = self._program.counts()
        return {
            "python_functions": unread,
            "python_stacks": counts[ProgramCounter.PYTHON_UNREAD],
            "waits": counts[ProgramCounter.WAITS_NOT_TAKEN],
            "files": self._native.unreadable + self._unwinding.unreadable,
        }

    def close(self) -> None:
        """Let go of all processes; safe twice."""
        for pid in list(self._processes):
            self.forget(pid)
        self._unwinding.close()

    def _less_told(self, record: StackRecord) -> StackRecord:
        """Return a wait that has ended without what was told of it while it went on."""
        told_ns = 0
        if record.kind == StackKind.OFF_CPU and self._told_ns:
            told_ns = self._told_ns.pop((record.tid, record.slice), 0)
        return record._replace(time_ns=max(record.time_ns - told_ns, 0)) if told_ns else record

    def _go_on_waiting(self) -> Iterable[StackRecord]:
        """Yield the waits that go on, for as long as was not told of each."""
        now_ns = time.monotonic_ns()
        for pid in self._processes:
            since_ns, key = self._program.wait(pid) or (0, b"")
            if not since_ns or now_ns - since_ns < TOLD_AFTER_NS:
                continue
            fields = KEY.unpack(key)
            name = fields[1], fields[5]
            told_ns = self._told_ns.get(name, 0)
            if now_ns - since_ns - told_ns < TOLD_AFTER_NS:
                continue
            self._told_ns[name] = now_ns - since_ns
            yield StackRecord._make((*fields, 0, now_ns - since_ns - told_ns, b""))
        # Waits whose end was lost; what has ended since the program was asked is told by the next look.
        while len(self._told_ns) > REMEMBERED_PROCESSES:
            del self._told_ns[next(iter(self._told_ns))]

    def _sample(self, record: StackRecord, now_s: float) -> StackSample:
        return StackSample(
            record.tgid,
            record.tid,
            record.slot,
            StackKind(record.kind),
            StackFlag(record.flags),
            record.slice * self._program.slice_ns + self._program.slice_ns // 2,
            self._frames(record, now_s),
            record.number,
            record.time_ns,
            _waker_of(record),
        )

    def _frames(self, record: StackRecord, now_s: float) -> tuple[Frame, ...]:
        if record.flags & StackFlag.NOT_TAKEN:
            return (NOT_TAKEN,)
        process = self._processes.get(record.tgid)
        kernel = self._chain(record.kernel, FrameKind.KERNEL, None, now_s)
        native = self._chain(record.user, FrameKind.NATIVE, process, now_s)
        python = self._chain(record.python, FrameKind.CPYTHON, process, now_s)
        # One object for each stack: whoever sums tells them apart by it, which is cheap.
        name = record.kernel, record.user, record.python, record.kind
        parts = kernel, native, python
        known = self._merged.get(name)
        if known is not None and all(map(operator.is_, known[0], parts)):
            return known[1]
        file = process.python.file if process is not None and process.python is not None else None
        if record.kind == StackKind.OFF_CPU:
            kernel = tuple(trim_wait(kernel))
        merged = merge_frames(kernel, native, python, file)
        self._merged[name] = parts, merged
        if len(self._merged) > REMEMBERED_CHAINS:
            self._merged.popitem(last=False)
        return merged

    def _chain(
        self, name: int, kind: FrameKind, process: _Process | None, now_s: float
    ) -> tuple[Frame, ...]:
        if not name:
            return ()
        known = self._chains.get(name)
        if known is not None and (kind is FrameKind.KERNEL or now_s - known[1] < KNOWN_FOR_S):
            return known[0]
        chain = self._program.chain(name)
        if chain is None:
            if known is not None:
                return known[0]
            self._lost_chains += 1
            return (Frame(kind, LOST),)
        frames = self._resolve(chain, kind, process, now_s)
        if chain.is_cut and kind is FrameKind.CPYTHON:
            frames += (Frame(kind, CUT),)
        self._chains[name] = frames, now_s
        self._chains.move_to_end(name)
        if len(self._chains) > REMEMBERED_CHAINS:
            self._chains.popitem(last=False)
        return frames

    def _resolve(
        self, chain: Chain, kind: FrameKind, process: _Process | None, now_s: float
    ) -> tuple[Frame, ...]:
        if kind is FrameKind.KERNEL:
            return tuple(self._kernel.frame(address) for address in chain.addresses)
        if process is None:
            return tuple(Frame(kind, "unknown") for _ in chain.addresses)
        if kind is FrameKind.CPYTHON and process.names is not None:
            return tuple(process.names.frame(address, now_s) for address in chain.addresses)
        # Behind the first address come those of returns, which may lie just behind the function that called.
        frames: list[Frame] = []
        for place, address in enumerate(chain.addresses):
            frame = self._native_frame(process, address - bool(place), now_s)
            if frame is None:
                # No code lies there: the chain broke off before.
                return tuple(frames) if place else (UNKNOWN_NATIVE,)
            frames.append(frame)
        return tuple(frames)

    def _native_frame(self, process: _Process, address: int, now_s: float) -> Frame | None:
        mapping = process.mappings.find(address) if process.mappings is not None else None
        if mapping is None:
            process.map_again(now_s)
            mapping = process.mappings.find(address) if process.mappings is not None else None
        if mapping is None or process.mappings is None or not mapping.is_code:
            return None
        return self._native.frame(process.mappings, mapping, address)


def _waker_of(record: StackRecord) -> Waker | None:
    if not record.waker_tid:
        return None
    name = record.waker_name.partition(b"\0")[0].decode(errors="replace")
    return Waker(record.waker_tgid, record.waker_tid, name)
