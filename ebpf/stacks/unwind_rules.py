"""What unwinding by tables comes to: rows that say, from an address on, how a frame is left.

Of a binary search the last row at or below an address holds.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

__all__ = ["END", "NO_TABLE", "UNFOLLOWED", "Cfa", "Kept", "Row", "Rule"]


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
