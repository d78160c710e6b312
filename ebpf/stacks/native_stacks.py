"""The native stack of a blocked thread, from its registers and the memory of its stack, by the tables of its files.

    registers ──▶ function and rule at the address ──▶ caller's address and stack pointer ──▶ …

The stack's memory is anonymous and is read in pieces. The walk ends where no rule leads on: it names what it has come
to and invents nothing.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from rootwalk.ebpf.stacks.frame_pointers import find_frame_pointer
from rootwalk.ebpf.stacks.mappings import Mapping, Mappings
from rootwalk.ebpf.stacks.native_names import readable_name
from rootwalk.ebpf.stacks.native_symbols import NativeSymbols
from rootwalk.ebpf.stacks.process_memory import Memory
from rootwalk.ebpf.stacks.thread_facts import Registers
from rootwalk.ebpf.stacks.unwind_rules import Cfa, Kept, Rule
from rootwalk.ebpf.stacks.unwinding import FrameRule, Mapped, Unwinding
from rootwalk.instrumentation.profiles import Frame

__all__ = ["NativeStacks"]

MAX_FRAMES = 48
# Between two frames; alloca and large arrays included.
MAX_FRAME_BYTES = 1 << 20
PIECE_BYTES = 32 * 1024
# arm64 signs return addresses above this bit; x86-64 has none above it in user space.
ADDRESS_MASK = (1 << 48) - 1
WORD = struct.Struct("<Q")


class _Stack:
    """The memory above a stack pointer, read in pieces."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._begin = 0
        self._data = b""

    def word(self, address: int) -> int | None:
        """Return the word at an address; None where none can be read."""
        at = address - self._begin
        if not 0 <= at <= len(self._data) - WORD.size:
            self._begin, self._data = address, self._memory.read(address, PIECE_BYTES)
            at = 0
        if len(self._data) < at + WORD.size:
            return None
        return int(WORD.unpack_from(self._data, at)[0])


class _Point:
    """Where a walk stands; the frame pointer is None where it is not known."""

    __slots__ = ("fp", "pc", "sp")

    def __init__(self, registers: Registers) -> None:
        self.pc, self.sp = registers
        self.fp: int | None = None


class NativeStacks:
    """Owns the tables of files, for all processes."""

    def __init__(self) -> None:
        self._unwinding = Unwinding()
        self._symbols = NativeSymbols()

    def frames(
        self, process: Mapped, registers: Registers, is_last: Callable[[Frame], bool]
    ) -> list[Frame]:
        """Return the native frames of a blocked thread, innermost first.

        Args:
            process: Whose thread it is.
            registers: The thread's.
            is_last: Whether a frame is the last one that is wanted.
        """
        memory = process.memory
        if memory is None:
            return []
        stack, point, frames = _Stack(memory), _Point(registers), list[Frame]()
        while len(frames) < MAX_FRAMES:
            # A caller's address is that behind its call, which may be behind its function.
            address = point.pc - bool(frames)
            mapping = _find(process, address)
            if mapping is None or process.mappings is None or not mapping.is_code:
                break
            frames.append(self._name(process.mappings, mapping, address))
            if is_last(frames[-1]) or not self._step(process, stack, point, address):
                break
        return frames

    def close(self) -> None:
        """Close all files; safe twice."""
        self._unwinding.close()

    def _name(self, mappings: Mappings, mapping: Mapping, address: int) -> Frame:
        frame = self._symbols.frame(mappings, mapping, address)
        name = readable_name(frame.function) if frame.function is not None else None
        return Frame(frame.kind, name, binary=frame.binary, address=frame.address)

    def _step(self, process: Mapped, stack: _Stack, point: _Point, address: int) -> bool:
        """Go to the caller; return whether there is one."""
        found = self._unwinding.rule_at(process, address)
        rule = found.rule if found is not None else None
        if rule is None or found is None or rule.cfa in (Cfa.NO_TABLE, Cfa.UNSUPPORTED):
            rule = Rule(Cfa.FRAME, 16, Kept.AT_CFA, -16, Kept.AT_CFA, -8)
            if point.fp is None or not point.sp <= point.fp < point.sp + MAX_FRAME_BYTES:
                return False
        elif rule.cfa is Cfa.END:
            return False
        elif rule.cfa in (Cfa.FRAME, Cfa.AT_FRAME) and point.fp is None:
            point.fp = _recover(process, point.sp, found)
        cfa = _frame_address(stack, point, rule)
        if cfa is None or not point.sp < cfa <= point.sp + MAX_FRAME_BYTES or cfa % 8:
            return False
        # The register with the return address is not known, and does not hold it any more in callers.
        back = stack.word(cfa + rule.back_offset) if rule.back is Kept.AT_CFA else None
        if not back:
            return False
        if rule.frame is Kept.AT_CFA:
            point.fp = stack.word(cfa + rule.frame_offset)
        elif rule.frame is Kept.AT_FRAME and point.fp is not None:
            point.fp = stack.word(point.fp + rule.frame_offset)
        elif rule.frame is not Kept.SAME:
            point.fp = None
        point.pc, point.sp = back & ADDRESS_MASK, cfa
        return True


def _find(process: Mapped, address: int) -> Mapping | None:
    """Return what is mapped at an address; a library that was loaded meanwhile is looked for."""
    found = process.mappings.find(address) if process.mappings is not None else None
    if found is None:
        process.map_again(time.monotonic())
        found = process.mappings.find(address) if process.mappings is not None else None
    return found


def _frame_address(stack: _Stack, point: _Point, rule: Rule) -> int | None:
    if rule.cfa is Cfa.STACK:
        return point.sp + rule.cfa_offset
    if rule.cfa is Cfa.PLT:
        return point.sp + 8 + 8 * (point.pc % 16 >= rule.cfa_offset)
    if point.fp is None:
        return None
    if rule.cfa is Cfa.FRAME:
        return point.fp + rule.cfa_offset
    return stack.word(point.fp + rule.cfa_offset)


def _recover(process: Mapped, sp: int, found: FrameRule) -> int | None:
    """Return the frame pointer of a function whose caller's one lies where it points to."""
    rule, memory, mappings = found.rule, process.memory, process.mappings
    is_plain = rule.cfa is Cfa.FRAME and rule.frame is Kept.AT_CFA
    if not is_plain or rule.frame_offset != -rule.cfa_offset or memory is None or mappings is None:
        return None

    def is_code(address: int) -> bool:
        mapping = mappings.find(address)
        return mapping is not None and mapping.is_code

    above = rule.cfa_offset + rule.back_offset
    return find_frame_pointer(memory, is_code, sp, found.start, above)
