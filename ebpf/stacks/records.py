"""What the stack program tells, as `programs/stacks.h` lays it out."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import NamedTuple

__all__ = [
    "CHAIN",
    "CONFIG",
    "DROP_REASONS",
    "INTERPRETER",
    "KEY",
    "VALUE",
    "WAIT",
    "Chain",
    "Counter",
    "StackFlag",
    "StackKind",
    "StackRecord",
    "decode_chain",
    "decode_record",
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


def decode_record(key: bytes, value: bytes) -> StackRecord:
    """Return one entry of the map of samples."""
    return StackRecord(*KEY.unpack(key), *VALUE.unpack(value))


def decode_chain(data: bytes) -> Chain:
    """Return a chain; one that claims more than it can hold is cut."""
    count, flags = CHAIN_HEAD.unpack_from(data)
    count = min(count, CHAIN_FRAMES)
    return Chain(struct.unpack_from(f"<{count}Q", data, CHAIN_HEAD.size), bool(flags & CHAIN_CUT))
