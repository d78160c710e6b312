"""Stacks of the threads of a rank and of its children, kernel, native and Python in one list; read as they are now.

Holds what is known of processes and files between two snapshots. Made for one thread, which may wait: `snapshot` does
not, and gives up on a reader that waits too long.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rootwalk.ebpf.stacks.guarded_memory import GuardedMappings, GuardedMemory, SilentMounts
from rootwalk.ebpf.stacks.interpreters import InterpreterFinder, Located
from rootwalk.ebpf.stacks.mappings import Mapping
from rootwalk.ebpf.stacks.merge import is_interpreter, merge_frames
from rootwalk.ebpf.stacks.native_stacks import NativeStacks
from rootwalk.ebpf.stacks.process_memory import ProcessMemory
from rootwalk.ebpf.stacks.python_stacks import PythonStacks, PythonThread
from rootwalk.ebpf.stacks.thread_facts import own_numbers, read_facts, read_start
from rootwalk.instrumentation.profiles import Frame, FrameKind

__all__ = [
    "MAX_FRAMES",
    "ROLE_LOADER_WORKER",
    "ROLE_MAIN",
    "ROLE_OTHER",
    "StackReader",
    "ThreadStack",
]

# Of `training.thread.role`.
ROLE_MAIN, ROLE_LOADER_WORKER, ROLE_OTHER = "main", "loader_worker", "other"
MAX_FRAMES = 64
# Files of 256 ranks and their workers on one host.
REMEMBERED_PROCESSES = 512
# What the native part of all stacks of a rank may take; the first time large libraries are read, which takes longer.
NATIVE_S = 1.0
WORD_BYTES = 8


class ThreadStack(NamedTuple):
    """Where one thread stands.

    Attributes:
        pid: Its process.
        tid: Its number.
        name: As it calls itself.
        role: `main`, `loader_worker` or `other`, as `training.thread.role`.
        frames: Innermost first, at most 64: `function (file:line)`, `function [library]`, `function [kernel]`.
        system_call: The blocking call that it is in; None for none.
    """

    pid: int
    tid: int
    name: str
    role: str
    frames: tuple[str, ...]
    system_call: str | None


class _Process:
    """What is known of one process; its memory is None where it may not be read."""

    def __init__(
        self, pid: int, root: Path, finder: InterpreterFinder, silent: SilentMounts
    ) -> None:
        self._pid, self._root, self._silent = pid, root, silent
        self.start = read_start(pid, root)
        self.mappings: GuardedMappings | None = None
        self.memory: GuardedMemory | None = None
        self.located: Located | None = None
        self.python: PythonStacks | None = None
        self._raw: ProcessMemory | None = None
        self._may_map = True
        try:
            self._raw = ProcessMemory(pid, root)
            self.mappings = GuardedMappings(pid, root, silent)
        except (OSError, ValueError, IndexError):
            return
        self.memory = GuardedMemory(self._raw, self._find, self._allows)
        self.located = finder.locate(self.mappings, self.memory)
        if self.located is not None:
            self.python = PythonStacks.open(self.memory, self.located)

    def is_current(self) -> bool:
        """Return whether it is still the same program, whose interpreter has been found."""
        if self.python is None or self.memory is None or self.located is None:
            return False
        is_there = len(self.memory.read(self.located.runtime, WORD_BYTES)) == WORD_BYTES
        return is_there and read_start(self._pid, self._root) == self.start

    def begin(self) -> None:
        """Note that it is looked at anew, so that its mappings may have changed."""
        self._may_map = True

    def map_again(self, now_s: float) -> None:
        """Read its mappings again, for an address that is new; once each time that it is looked at."""
        if not self._may_map:
            return
        self._may_map = False
        try:
            self.mappings = GuardedMappings(self._pid, self._root, self._silent)
        except (OSError, ValueError, IndexError):
            return

    def close(self) -> None:
        """Let go of it; safe twice."""
        if self._raw is not None:
            self._raw.close()

    def _find(self, address: int, is_asked: bool) -> Mapping | None:
        found = self.mappings.find(address) if self.mappings is not None else None
        if found is None and is_asked:
            self.map_again(time.monotonic())
            found = self.mappings.find(address) if self.mappings is not None else None
        return found

    def _allows(self, mapping: Mapping) -> bool:
        return self.mappings is not None and self.mappings.allows(mapping)


class StackReader:
    """Owns what is known of processes and files.

    Args:
        root: Folder that holds the processes.
        silent: Mounts that do not answer.
    """

    def __init__(self, root: Path, silent: SilentMounts) -> None:
        self._root = root
        self._silent = silent
        self._finder = InterpreterFinder(root)
        self._native = NativeStacks()
        self._processes: OrderedDict[int, _Process] = OrderedDict()
        self._native_until_s = 0.0

    def begin(self) -> None:
        """Note that a rank's stacks are taken from now on: their native part has its time."""
        self._native_until_s = time.monotonic() + NATIVE_S

    def main_stack(self, pid: int, role: str) -> ThreadStack | None:
        """Return the stack of a process's main thread; None where it is gone or may not be read."""
        process = self._process(pid)
        thread = next((one for one in self._python_threads(process, pid) if one.tid == pid), None)
        return self._stack(process, pid, pid, role, thread)

    def other_stacks(self, pid: int) -> Iterator[ThreadStack]:
        """Yield the stacks of a process's other threads that have a Python state."""
        process = self._process(pid)
        for thread in sorted(self._python_threads(process, pid), key=lambda one: one.tid):
            if thread.tid != pid:
                stack = self._stack(process, pid, thread.tid, ROLE_OTHER, thread)
                if stack is not None:
                    yield stack

    def forget(self, pid: int) -> None:
        """Let go of a process; safe when it is not known."""
        process = self._processes.pop(pid, None)
        if process is not None:
            process.close()

    def close(self) -> None:
        """Let go of everything; safe twice."""
        for pid in list(self._processes):
            self.forget(pid)
        self._native.close()

    def _process(self, pid: int) -> _Process:
        known = self._processes.get(pid)
        if known is None or not known.is_current():
            self.forget(pid)
            known = self._processes[pid] = _Process(pid, self._root, self._finder, self._silent)
            while len(self._processes) > REMEMBERED_PROCESSES:
                self.forget(next(iter(self._processes)))
        self._processes.move_to_end(pid)
        known.begin()
        return known

    def _python_threads(self, process: _Process, pid: int) -> list[PythonThread]:
        if process.python is None:
            return []
        return process.python.threads(pid, own_numbers(pid, self._root))

    def _stack(
        self, process: _Process, pid: int, tid: int, role: str, thread: PythonThread | None
    ) -> ThreadStack | None:
        facts = read_facts(pid, tid, self._root)
        python: list[Frame] = []
        if thread is not None and process.python is not None:
            python = process.python.frames(thread, time.monotonic())
        file = process.located.file if process.located is not None else None
        native: list[Frame] = []
        if facts.registers is not None and time.monotonic() < self._native_until_s:
            native = self._native.frames(
                process,
                facts.registers,
                lambda frame: bool(python) and is_interpreter(frame, file),
            )
        merged = merge_frames(facts.kernel, native, python, file)
        if not merged and facts.system_call is None:
            return None
        frames = tuple(_write(frame) for frame in merged[:MAX_FRAMES])
        return ThreadStack(pid, tid, facts.name, role, frames, facts.system_call)


def _write(frame: Frame) -> str:
    """Return a frame as `training.stack.frames` has it."""
    if frame.kind is FrameKind.CPYTHON:
        place = f"{frame.file}:{frame.line}" if frame.line else frame.file
        return f"{frame.function} ({place})"
    if frame.kind is FrameKind.KERNEL:
        return f"{frame.function} [kernel]"
    library = frame.binary.name if frame.binary is not None else "unknown"
    return f"{frame.function or hex(frame.address)} [{library}]"
