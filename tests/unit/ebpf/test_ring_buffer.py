"""Pieces of a ring, as the kernel leaves them."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from rootwalk.ebpf.ring_buffer import BUSY_BIT, DISCARD_BIT, find_records


def record(body: bytes, bits: int = 0) -> bytes:
    return struct.pack("<II", len(body) | bits, 0) + body.ljust((len(body) + 7) // 8 * 8, b"\0")


def test_records_are_found_by_their_own_length() -> None:
    # header 8, body 5 padded to 8 | header 8, body 16
    piece = record(b"abcde") + record(b"x" * 16)
    assert find_records(piece) == ([(8, 5), (24, 16)], 40)


def test_a_record_that_is_being_written_ends_the_piece() -> None:
    piece = record(b"a" * 8) + record(b"b" * 8, BUSY_BIT) + record(b"c" * 8)
    assert find_records(piece) == ([(8, 8)], 16)


def test_a_discarded_record_is_passed_over() -> None:
    piece = record(b"a" * 8, DISCARD_BIT) + record(b"b" * 8)
    assert find_records(piece) == ([(24, 8)], 32)


@given(st.binary(max_size=200))
def test_garbage_is_survived(piece: bytes) -> None:
    _, used = find_records(piece)
    assert used >= 0
