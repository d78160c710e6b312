"""What the stack program tells, as `programs/stacks.h` lays it out."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple

__all__ = [
    "CHAIN",
    "CONFIG",
    "DROP_REASONS",
    "INTERPRETER",
    "KEY",
    "NOTE",
    "RULES",
    "VALUE",
    "WAIT",
    "WINDOW_BYTES",
    "WINDOW_KEY",
    "CfaKind",
    "Chain",
    "Counter",
    "Note",
    "StackFlag",
    "StackKind",
    "StackRecord",
    "UnwindRule",
    "decode_chain",
    "decode_note",
    "decode_record",
    "pack_window",
]

CHAIN_FRAMES = 128
CHAIN_CUT = 1
# struct stack_config, interpreter, stack_key, stack_value, stack_wait
CONFIG = struct.Struct("<QII")
INTERPRETER = struct.Struct("<Q10I")
KEY = struct.Struct("<IIIHHQQQQII")
VALUE = struct.Struct("<QQ16s")
WAIT = struct.Struct("<QQII56s")
CHAIN_HEAD = struct.Struct("<II")
CHAIN = struct.Struct(f"<II{CHAIN_FRAMES}Q")
WORD = struct.Struct("<Q")
# struct window_key, unwind_note, unwind_rule
WINDOW_BYTES = 64
RULES = 16
NOTE_STACK_BYTES = 8192
FP_AT_FP = 16
WINDOW_KEY = struct.Struct("<IIQ")
NOTE = struct.Struct(f"<QQQQIHH{NOTE_STACK_BYTES}s")
RULE = struct.Struct("<BBhhh")
NO_RULE = RULE.pack(255, 0, 0, 0, 0)


class StackKind(IntEnum):
    """`enum stack_kind`."""

    ON_CPU = 0
    OFF_CPU = 1


class StackFlag(IntFlag):
    """Flags of a thread and its process."""

    CHILD = 1
    FIRST_THREAD = 2
    NOT_TAKEN = 4


class Counter(IntEnum):
    """`enum stack_counter`."""

    SAMPLES_FULL = 0
    THREAD_UNKNOWN = 1
    PYTHON_UNREAD = 2
    WAITS_NOT_TAKEN = 3
    ON_CPU = 4
    OFF_CPU = 5
    NATIVE_CUT = 6


class CfaKind(IntEnum):
    """`enum unwind_cfa`."""

    UNKNOWN = 0
    SP = 1
    FP = 2
    PLT = 3
    END = 4
    AT_FP = 5


# What of it is lost, by `rootwalk.drop.reason`.
DROP_REASONS = {Counter.SAMPLES_FULL: "bpf_stacks_full"}


class StackRecord(NamedTuple):
    """Samples of one stack of one thread in one slice of time; chains by their names, 0 for none; so is a waker."""

    tgid: int
    tid: int
    slot: int
    kind: int
    flags: int
    slice: int
    kernel: int
    user: int
    python: int
    waker_tid: int
    waker_tgid: int
    number: int
    time_ns: int
    waker_name: bytes = b""


class Chain(NamedTuple):
    """Addresses, the innermost first; whether there were more."""

    addresses: tuple[int, ...]
    is_cut: bool


class UnwindRule(NamedTuple):
    """`struct unwind_rule`: how a frame is left, from one byte of a window on; offsets in words of 8 bytes."""

    begin: int
    cfa: CfaKind
    cfa_words: int = 0
    fp_words: int = 0
    pc_words: int = 0
    is_fp_at_fp: bool = False


class Note(NamedTuple):
    """Where a walk came to a window that it has no rules of: its registers, and the stack from `sp` on."""

    space: int
    number: int
    pc: int
    sp: int
    fp: int
    link: int
    tgid: int
    is_caller: bool
    stack: bytes

    def word(self, address: int) -> int | None:
        """Return what lies at an address of the stack; None for what was not noted."""
        at = address - self.sp
        return WORD.unpack_from(self.stack, at)[0] if 0 <= at <= len(self.stack) - 8 else None


def decode_record(key: bytes, value: bytes) -> StackRecord:
    """Return one entry of the map of samples."""
    return StackRecord(*KEY.unpack(key), *VALUE.unpack(value))


def decode_chain(data: bytes) -> Chain:
    """Return a chain; one that claims more than it can hold is cut."""
    count, flags = CHAIN_HEAD.unpack_from(data)
    count = min(count, CHAIN_FRAMES)
    return Chain(struct.unpack_from(f"<{count}Q", data, CHAIN_HEAD.size), bool(flags & CHAIN_CUT))


def decode_note(key: bytes, value: bytes) -> Note:
    """Return one entry of the map of notes."""
    space, _, number = WINDOW_KEY.unpack(key)
    pc, sp, fp, link, tgid, size, is_caller, stack = NOTE.unpack(value)
    return Note(space, number, pc, sp, fp, link, tgid, bool(is_caller), stack[:size])


def pack_window(rules: Sequence[UnwindRule]) -> bytes:
    """Return a `struct unwind_window` of at most `RULES` rules, of which the first begins at 0."""
    packed = [
        RULE.pack(one.begin, one.cfa | FP_AT_FP * one.is_fp_at_fp, *one[2:5]) for one in rules
    ]
    return b"".join(packed) + NO_RULE * (RULES - len(packed))
