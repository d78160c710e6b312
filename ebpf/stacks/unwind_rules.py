"""What unwinding by tables comes to: rows that say, from an address on, how a frame is left.

Of a binary search the last row at or below an address holds.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

__all__ = ["END", "NO_TABLE", "ROW", "UNFOLLOWED", "Cfa", "Kept", "Row", "Rule", "pack_row"]

# Of a packed row: address less a base, offset of the CFA; offsets of frame pointer and return address, in words of
# eight bytes; how each of the three is found.
ROW = struct.Struct("<IihhBBBx")
WORD = 8


class Cfa(IntEnum):
    """How the canonical frame address, the stack pointer before the call, is found.

    Attributes:
        NO_TABLE: Not: no function is told of here.
        END: Not: nobody called this function, the stack ends.
        UNSUPPORTED: Not: by what is not followed here.
        STACK: Stack pointer + offset.
        FRAME: Frame pointer + offset.
        PLT: Stack pointer + 8, and 8 more where the pc's last four bits are `offset` or above.
        AT_FRAME: Loaded from frame pointer + offset; what GCC does where it aligns the stack.
    """

    NO_TABLE = 0
    END = 1
    UNSUPPORTED = 2
    STACK = 3
    FRAME = 4
    PLT = 5
    AT_FRAME = 6


class Kept(IntEnum):
    """Where the caller's value of a register is.

    Attributes:
        SAME: In the register.
        AT_CFA: In memory at the CFA + offset.
        AT_FRAME: In memory at the frame pointer + offset.
        UNDEFINED: Nowhere.
        UNSUPPORTED: By what is not followed here.
    """

    SAME = 0
    AT_CFA = 1
    AT_FRAME = 2
    UNDEFINED = 3
    UNSUPPORTED = 4


class Rule(NamedTuple):
    """How to leave a frame. One object for all that are equal.

    Attributes:
        cfa: How the CFA is found.
        cfa_offset: 32 bits with sign, like all offsets.
        frame: Where the caller's frame pointer is.
        frame_offset: Bytes.
        back: Where the return address is; on x86-64 always at the CFA - 8.
        back_offset: Bytes.
    """

    cfa: Cfa
    cfa_offset: int = 0
    frame: Kept = Kept.SAME
    frame_offset: int = 0
    back: Kept = Kept.SAME
    back_offset: int = 0


NO_TABLE = Rule(Cfa.NO_TABLE)
END = Rule(Cfa.END)
UNFOLLOWED = Rule(Cfa.UNSUPPORTED)


class Row(NamedTuple):
    """From where on a rule holds.

    Attributes:
        at: Address, in the file's own numbers.
        rule: What holds from there to the next row.
    """

    at: int
    rule: Rule


def pack_row(row: Row, base: int = 0) -> bytes:
    """Return a row as 16 bytes, for a program in the kernel; what does not fit is told as unsupported.

    Raises:
        struct.error: If its address is not within 4 GiB above the base.
    """
    rule = row.rule
    if not _is_packed(rule.back_offset):
        rule = UNFOLLOWED
    elif not _is_packed(rule.frame_offset):
        rule = rule._replace(frame=Kept.UNSUPPORTED, frame_offset=0)
    return ROW.pack(
        row.at - base,
        rule.cfa_offset,
        rule.frame_offset // WORD,
        rule.back_offset // WORD,
        rule.cfa,
        rule.frame,
        rule.back,
    )


def _is_packed(offset: int) -> bool:
    return offset % WORD == 0 and -0x8000 <= offset // WORD < 0x8000
