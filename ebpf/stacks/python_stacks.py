"""The Python stacks of a process's threads as they are now, read from its memory while it goes on.

    _PyRuntime ──▶ interpreter ──▶ thread states ──▶ frames ──▶ code objects ──▶ name, file, line

The process is not stopped, so a stack that runs may change while it is read, and the memory may be anyone's: every
address is checked, every chain is bounded and may not come back to itself, and what cannot be read ends the stack.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rootwalk.ebpf.stacks.code_lines import find_line, find_line_3_10
from rootwalk.ebpf.stacks.code_names import KNOWN_FOR_S, UNKNOWN_PYTHON, CodeNames
from rootwalk.ebpf.stacks.frame_layouts import STATED_BYTES, FrameLayout, choose_frame_layout
from rootwalk.ebpf.stacks.interpreters import Interpreter, Located
from rootwalk.ebpf.stacks.process_memory import Memory
from rootwalk.instrumentation.profiles import Frame

__all__ = ["PythonStacks", "PythonThread"]

MAX_INTERPRETERS = 16
MAX_THREADS = 1024
# What a reader of a stack wants; deeper ones are recursions.
MAX_FRAMES = 64
# Frames of the interpreter's own, between those of Python; 3.12 has one for each call from C.
MAX_HIDDEN = 256
# 65,536 instructions with long entries; functions are a hundredth of it.
MAX_TABLE_BYTES = 256 * 1024
REMEMBERED_LINES = 4096
# A frame of 3.10 to 3.14, as far as it is read.
FRAME_BYTES = 104
# FRAME_OWNED_BY_CSTACK of 3.12 and 3.13; FRAME_OWNED_BY_INTERPRETER and _CSTACK of 3.14.
FIRST_HIDDEN_OWNER = 3
# References of 3.14 have marks here; objects lie at multiples of 8.
TAG_BITS = 7
# PyBytesObject: its length, and where its bytes begin.
BYTES_LENGTH, BYTES_BEGIN = 16, 32
# Of glibc's `struct pthread`; the kernel's number lies at 720 on x86-64 and at 208 on arm64 (2.31 to 2.41).
DESCRIPTOR_BYTES = 1024
WORD = struct.Struct("<Q")
NUMBER = struct.Struct("<i")


class PythonThread(NamedTuple):
    """One thread state: where it lies, and the kernel's number of its thread."""

    state: int
    tid: int


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a frame stands: its code object, and the running instruction (see `FrameLayout`)."""

    code: int
    instruction: int


class PythonStacks:
    """Reads the stacks of one process.

    Args:
        memory: Its memory.
        located: Where its interpreter is.
        layout: The interpreter's offsets.
    """

    def __init__(self, memory: Memory, located: Located, layout: FrameLayout) -> None:
        self._memory = memory
        self._layout = layout
        self._runtime = located.runtime
        python = Interpreter(
            located.version, layout.base, located.runtime, located.code_type, located.file
        )
        self._names = CodeNames(memory, python)
        self._lines: OrderedDict[_Position, tuple[int, float]] = OrderedDict()

    @classmethod
    def open(cls, memory: Memory, located: Located) -> PythonStacks | None:
        """Return a reader; None where the version or build of the interpreter is not known."""
        head = memory.read(located.runtime, STATED_BYTES)
        layout = choose_frame_layout(located.version, head)
        return cls(memory, located, layout) if layout is not None else None

    def threads(self, pid: int, tids: Mapping[int, int]) -> list[PythonThread]:
        """Return the threads that have a Python state and live.

        Args:
            pid: The process: the number of its main thread.
            tids: The numbers of its threads, by those that the process itself knows.
        """
        states = list(self._states())
        found = [PythonThread(state, tids.get(self._own_tid(state, tids), 0)) for state in states]
        known = [one for one in found if one.tid]
        # After a fork the only thread's state may still have its parent's number.
        lost = [one for one in found if not one.tid]
        if len(lost) == 1 and all(one.tid != pid for one in known):
            known.append(PythonThread(lost[0].state, pid))
        return known

    def frames(self, thread: PythonThread, now_s: float) -> list[Frame]:
        """Return the stack of a thread, innermost first, with lines; empty where it runs no Python.

        Args:
            thread: One of `threads`.
            now_s: Monotonic clock, s.
        """
        frames: list[Frame] = []
        for position in self._positions(thread.state):
            frame = self._names.frame(position.code, now_s)
            if frame is UNKNOWN_PYTHON or len(frames) >= MAX_FRAMES:
                break
            line = self._line(position, frame.first_line, now_s)
            frames.append(
                Frame(
                    frame.kind,
                    frame.function,
                    file=frame.file,
                    line=line,
                    first_line=frame.first_line,
                    package=frame.package,
                )
            )
        return frames

    def _states(self) -> Iterator[int]:
        base = self._layout.base
        interpreter = self._word(self._runtime + base.interpreters_head)
        seen: set[int] = set()
        for _ in range(MAX_INTERPRETERS):
            if not interpreter:
                return
            state = self._word(interpreter + base.threads_head)
            while state and state not in seen and len(seen) < MAX_THREADS:
                seen.add(state)
                yield state
                state = self._word(state + base.thread_next)
            interpreter = self._word(interpreter + self._layout.interpreter_next)

    def _own_tid(self, state: int, tids: Mapping[int, int]) -> int:
        """Return a thread's number as the process itself knows it; 0 where it is not found."""
        if self._layout.has_native_id:
            return self._word(state + self._layout.base.thread_native_id)
        # The only number of a live thread of this process in the C library's descriptor of the thread.
        data = self._memory.read(self._word(state + self._layout.thread_id), DESCRIPTOR_BYTES)
        data = data[: len(data) // NUMBER.size * NUMBER.size]
        return next((value for (value,) in NUMBER.iter_unpack(data) if value in tids), 0)

    def _positions(self, state: int) -> Iterator[_Position]:
        layout, base = self._layout, self._layout.base
        frame = self._word(state + base.thread_frame)
        if base.frame_in_cframe is not None:
            frame = self._word(frame + base.frame_in_cframe) if frame else 0
        seen: set[int] = set()
        for _ in range(MAX_FRAMES + MAX_HIDDEN):
            if not frame or frame % 8 or frame in seen:
                return
            seen.add(frame)
            data = self._memory.read(frame, FRAME_BYTES)
            if len(data) < FRAME_BYTES:
                return
            frame = WORD.unpack_from(data, base.frame_previous)[0]
            if layout.has_owner and data[base.frame_owner] >= FIRST_HIDDEN_OWNER:
                continue
            code = WORD.unpack_from(data, base.frame_code)[0] & ~TAG_BITS
            if layout.code_instructions is None:
                yield _Position(code, NUMBER.unpack_from(data, layout.frame_instruction)[0])
            else:
                yield _Position(code, WORD.unpack_from(data, layout.frame_instruction)[0])

    def _line(self, position: _Position, first_line: int, now_s: float) -> int:
        known = self._lines.get(position)
        if known is not None and now_s - known[1] < KNOWN_FOR_S:
            return known[0]
        line = self._read_line(position, first_line)
        self._lines[position] = line, now_s
        self._lines.move_to_end(position)
        if len(self._lines) > REMEMBERED_LINES:
            self._lines.popitem(last=False)
        return line

    def _read_line(self, position: _Position, first_line: int) -> int:
        """Return the line at which a frame stands; that where its function begins when it has not begun yet."""
        table = self._bytes(self._word(position.code + self._layout.code_lines))
        if self._layout.code_instructions is None:
            if position.instruction < 0:
                return first_line
            return find_line_3_10(table, position.instruction * 2, first_line)
        offset = position.instruction - position.code - self._layout.code_instructions
        if offset < 0:
            return first_line
        return find_line(table, offset // 2, first_line)

    def _bytes(self, address: int) -> bytes:
        if not address:
            return b""
        size = self._word(address + BYTES_LENGTH)
        return self._memory.read(address + BYTES_BEGIN, size) if size <= MAX_TABLE_BYTES else b""

    def _word(self, address: int) -> int:
        data = self._memory.read(address, WORD.size)
        return int(WORD.unpack(data)[0]) if len(data) == WORD.size else 0
