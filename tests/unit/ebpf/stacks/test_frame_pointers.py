"""The frame of a function on a stack without its frame pointer: found by the call, and never by chance alone."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest

from rootwalk.ebpf.stacks.frame_pointers import IS_SUPPORTED, find_frame_pointer

pytestmark = pytest.mark.skipif(not IS_SUPPORTED, reason="hardware: needs x86-64")

CODE, OTHER, STUB, TABLE, SP = 0x400000, 0x500000, 0x600000, 0x700000, 0x7FFF0000
START = CODE + 0x100
ABOVE = 8
WORDS = 64


class Pieces:
    """Memory made of pieces."""

    def __init__(self, pieces: Mapping[int, bytes]) -> None:
        self.pieces = dict(pieces)

    def read(self, address: int, size: int) -> bytes:
        for begin, data in self.pieces.items():
            if begin <= address < begin + len(data):
                return data[address - begin :][:size]
        return b""


def is_code(address: int) -> bool:
    return CODE <= address < STUB + 0x1000


def called_from(back: int, call: bytes) -> dict[int, bytes]:
    """Return the code before a return address."""
    return {back - 16: b"\x90" * (16 - len(call)) + call}


def direct(back: int, target: int) -> bytes:
    return b"\xe8" + struct.pack("<i", target - back)


def stack(**words: int) -> bytes:
    """Return a stack with words at places, such as `at4=0x1`."""
    values = [0] * WORDS
    for name, value in words.items():
        values[int(name[2:])] = value
    return struct.pack(f"<{WORDS}Q", *values)


def find(pieces: Mapping[int, bytes]) -> int | None:
    return find_frame_pointer(Pieces(pieces), is_code, SP, START, ABOVE)


def test_a_call_of_just_this_function_shows_its_frame() -> None:
    back = OTHER + 0x50
    room = stack(at9=SP + 8 * 20, at10=back)
    assert find({SP: room, **called_from(back, direct(back, START))}) == SP + 8 * 9


def test_a_call_of_another_function_is_passed_over() -> None:
    back, stale = OTHER + 0x50, OTHER + 0x350
    room = stack(at4=stale, at9=SP + 8 * 20, at10=back)
    pieces = {
        SP: room,
        **called_from(stale, direct(stale, START + 0x40)),
        **called_from(back, direct(back, START)),
    }
    assert find(pieces) == SP + 8 * 9
    assert find({SP: stack(at4=stale), **called_from(stale, direct(stale, START + 0x40))}) is None


@pytest.mark.parametrize(
    "stub", [b"\xff\x25", b"\xf3\x0f\x1e\xfa\xff\x25", b"\xf3\x0f\x1e\xfa\xf2\xff\x25"]
)
def test_a_call_through_a_stub_is_followed(stub: bytes) -> None:
    back = OTHER + 0x50
    jump = stub + struct.pack("<i", TABLE - (STUB + len(stub) + 4))
    pieces = {
        SP: stack(at10=back),
        STUB: jump.ljust(16, b"\x90"),
        TABLE: struct.pack("<Q", START),
        **called_from(back, direct(back, STUB)),
    }
    assert find(pieces) == SP + 8 * 9
    assert find({**pieces, TABLE: struct.pack("<Q", START + 1)}) is None


def test_a_call_through_a_table_is_followed() -> None:
    back = OTHER + 0x50
    call = b"\xff\x15" + struct.pack("<i", TABLE - back)
    pieces = {
        SP: stack(at10=back),
        TABLE: struct.pack("<Q", START),
        **called_from(back, call),
    }
    assert find(pieces) == SP + 8 * 9


@pytest.mark.parametrize(
    "call",
    [
        b"\xff\xd0",
        b"\x41\xff\xd4",
        b"\xff\x50\x18",
        b"\xff\x54\x24\x10",
        b"\xff\x90\x00\x01\x00\x00",
    ],
)
def test_a_call_through_a_register_counts_only_in_a_chain(call: bytes) -> None:
    back, next_back = OTHER + 0x50, OTHER + 0x350
    code = called_from(back, call)
    chained = stack(at9=SP + 8 * 20, at10=back, at21=next_back)
    assert find({SP: chained, **code}) == SP + 8 * 9
    assert find({SP: stack(at9=SP + 8 * 20, at10=back), **code}) is None
    assert find({SP: stack(at9=5, at10=back, at21=next_back), **code}) is None


def test_a_word_that_is_no_return_address_is_none() -> None:
    back = OTHER + 0x50
    assert find({SP: stack(at10=back), **called_from(back, b"\x90" * 7)}) is None
    assert find({SP: stack(at10=back)}) is None
    assert find({}) is None
    assert find_frame_pointer(Pieces({}), is_code, SP + 1, START, ABOVE) is None
