"""The frame pointer of a function on a stack where nobody knows the register: by who called the function.

/proc shows stack and instruction pointer of a blocked thread, and not the frame pointer. Most functions do not need it
to be left; those built with frame pointers do. Their frame is found on the stack: there lies a return address, and the
call before it goes to just this function. Where only calls through registers are found, the first one that lies in a
chain of frames is taken. x86-64 alone: on arm64 calls leave their address in a register.

Source: System V ABI for x86-64, section 3.2.2; Intel's manual, volume 2A, CALL.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Callable

from rootwalk.ebpf.stacks.process_memory import Memory

__all__ = ["find_frame_pointer"]

# Larger locals than of most functions that wait.
SEARCHED_BYTES = 16 * 1024
MAX_FRAME_BYTES = 1 << 20
WORD = struct.Struct("<Q")
OFFSET = struct.Struct("<i")
IS_SUPPORTED = platform.machine() == "x86_64"
CALL, GROUP_5, CALL_IN_GROUP, RIP_RELATIVE = 0xE8, 0xFF, 0x10, 0x15
# Where the byte 0xFF of an indirect call may lie in the 7 bytes before a return address: 2 to 7 bytes long.
INDIRECT_PLACES = (5, 4, 3, 1, 0)
ENDBR, BND, JUMP = b"\xf3\x0f\x1e\xfa", b"\xf2", b"\xff\x25"
STUB_BYTES = 16


def find_frame_pointer(
    memory: Memory, is_code: Callable[[int], bool], sp: int, start: int, above: int
) -> int | None:
    """Return the frame pointer of a function that has set it up; None where its frame is not found.

    Args:
        memory: Of the process.
        is_code: Whether code lies at an address.
        sp: Stack pointer inside the function, or at its call.
        start: Where the function begins.
        above: Bytes from the frame pointer to the return address.
    """
    if not IS_SUPPORTED or sp % 8:
        return None
    data = memory.read(sp, SEARCHED_BYTES)
    words = [word for (word,) in WORD.iter_unpack(data[: len(data) // 8 * 8])]
    likely: int | None = None
    for place in range(above // 8, len(words)):
        back, frame = words[place], sp + 8 * place - above
        if back >> 47 or back < 1 << 16 or not is_code(back):
            continue
        target = _called(memory, back)
        if target == start or (target and _behind_stub(memory, target) == start):
            return frame
        if target == 0 and likely is None:
            above_frame = words[place - above // 8]
            if frame < above_frame < frame + MAX_FRAME_BYTES and above_frame % 8 == 0:
                next_back = memory.read(above_frame + above, WORD.size)
                if len(next_back) == WORD.size and is_code(WORD.unpack(next_back)[0]):
                    likely = frame
    return likely


def _called(memory: Memory, back: int) -> int | None:
    """Return what the call before a return address calls: 0 where a register says it, None where there is no call."""
    data = memory.read(back - 7, 7)
    if len(data) < 7:
        return None
    if data[2] == CALL:
        return back + int(OFFSET.unpack_from(data, 3)[0])
    if data[1] == GROUP_5 and data[2] == RIP_RELATIVE:
        return _word(memory, back + OFFSET.unpack_from(data, 3)[0])
    for place in INDIRECT_PLACES:
        if data[place] == GROUP_5 and data[place + 1] & 0x38 == CALL_IN_GROUP:
            return 0
    return None


def _behind_stub(memory: Memory, target: int) -> int | None:
    """Return where a stub of the procedure linkage table jumps to; None for what is no such stub."""
    data = memory.read(target, STUB_BYTES)
    at = len(ENDBR) if data.startswith(ENDBR) else 0
    at += data.startswith(BND, at)
    if not data.startswith(JUMP, at) or len(data) < at + 6:
        return None
    return _word(memory, target + at + 6 + OFFSET.unpack_from(data, at + 2)[0])


def _word(memory: Memory, address: int) -> int | None:
    data = memory.read(address, WORD.size)
    return int(WORD.unpack(data)[0]) if len(data) == WORD.size else None
