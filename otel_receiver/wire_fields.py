"""Compiled: fields of protobuf messages, and slices of bytes as columns of text.

Only for bytes that protobuf has accepted: nothing is checked twice.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

from rootwalk.otel_receiver.wire_words import WORD_BYTES, load_word, store_word

__all__ = [
    "bytes_array",
    "copy",
    "find",
    "gather",
    "gather_hex",
    "gather_numbers",
    "is_plain",
    "is_same",
    "read_field",
]

_LOWEST: Final = np.uint64(0x0101010101010101)
# An offset after the end of anything.
_BEYOND: Final = 1 << 62


@njit
def _read_varint(data: Any, at: int) -> Any:
    """Return an unsigned number of any length, as protobuf reads it, and the offset after it."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while True:
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return value, at
        shift += np.uint64(7)


@njit(forceinline=True)
def read_field(data: Any, at: int) -> Any:
    """Return (tag, content, offset after it); the content is a number, or where bytes begin.

    The tag is -1 for a group, whose end only protobuf knows; the offset is then beyond everything.
    """
    tag = np.int64(data[at])
    at += 1
    if tag >= 0x80:
        long_tag, at = _read_varint(data, at - 1)
        tag = np.int64(long_tag)
    wire_type = tag & 7
    if wire_type == 2:
        size = np.int64(data[at])
        at += 1
        if size >= 0x80:
            long_size, at = _read_varint(data, at - 1)
            size = np.int64(long_size)
        return tag, np.uint64(at), at + size
    if wire_type == 0:
        value, at = _read_varint(data, at)
        return tag, value, at
    if wire_type == 1:
        return tag, load_word(data, at), at + 8
    if wire_type == 5:
        return tag, np.uint64(0), at + 4
    return -1, np.uint64(0), _BEYOND


@njit
def is_plain(data: Any, at: int, end: int, single: int) -> bool:
    """Say whether a message has no group and one field at most that may not come twice."""
    has_single = False
    while at < end:
        tag, _, at = read_field(data, at)
        if tag < 0 or (tag == single and has_single):
            return False
        has_single = has_single or tag == single
    return True


@njit
def find(data: Any, at: int, end: int, wanted: int) -> Any:
    """Return (offset, size) of the first field with a tag; (0, 0) where there is none."""
    while at < end:
        tag, content, at = read_field(data, at)
        if tag == wanted:
            return np.int64(content), at - np.int64(content)
    return 0, 0


@njit(forceinline=True)
def is_same(a: Any, at: int, b: Any, start: int, size: int) -> bool:
    """Say whether two slices of so many bytes are equal."""
    while size > WORD_BYTES:
        if load_word(a, at) != load_word(b, start):
            return False
        at, start, size = at + WORD_BYTES, start + WORD_BYTES, size - WORD_BYTES
    difference = load_word(a, at) ^ load_word(b, start)
    return size <= 0 or difference << np.uint64(8 * (WORD_BYTES - size)) == np.uint64(0)


def bytes_array(*parts: bytes) -> Any:
    """Return bytes one after the other as the compiled functions take them, with a word of room."""
    return np.frombuffer(b"".join((*parts, bytes(WORD_BYTES))), np.uint8)


@njit(forceinline=True)
def copy(out: Any, at: int, data: Any, start: int, size: int) -> None:
    """Copy so many bytes and up to a word's rest more."""
    for done in range(0, size, WORD_BYTES):
        store_word(out, at + done, load_word(data, start + done))


@njit(cache=True)
def gather(data: Any, starts: Any, sizes: Any, offsets: Any, out: Any) -> None:
    """Copy slices one after the other; -1 as a size is none."""
    at = 0
    for row in range(starts.size):
        offsets[row] = at
        copy(out, at, data, starts[row], sizes[row])
        at += max(sizes[row], 0)
    offsets[starts.size] = at


@njit(forceinline=True)
def _hex_word(bytes_: Any) -> Any:
    """Return four bytes as eight letters of lower-case hex, one nibble in each byte of a word."""
    spread = (bytes_ | bytes_ << np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    spread = (spread | spread << np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    nibbles = (spread >> np.uint64(4) | spread << np.uint64(8)) & np.uint64(0x0F0F0F0F0F0F0F0F)
    # A nibble above 9 has bit 4 set when 6 is added to it; its letter is 39 beyond the digits.
    is_letter = (nibbles + np.uint64(0x0606060606060606) >> np.uint64(4)) & _LOWEST
    return nibbles + np.uint64(0x3030303030303030) + is_letter * np.uint64(39)


@njit(cache=True)
def gather_numbers(data: Any, starts: Any, sizes: Any, out: Any) -> None:
    """Read slices as numbers, the first byte the highest; what is longer than eight bytes means nothing."""
    for row in range(starts.size):
        number = np.uint64(0)
        for index in range(starts[row], starts[row] + sizes[row]):
            number = number << np.uint64(8) | np.uint64(data[index])
        out[row] = number


@njit(cache=True)
def gather_hex(data: Any, starts: Any, sizes: Any, offsets: Any, out: Any) -> None:
    """Write slices one after the other as lower-case hex."""
    at = 0
    for row in range(starts.size):
        offsets[row] = at
        for done in range(0, sizes[row], 4):
            four = load_word(data, starts[row] + done) & np.uint64(0xFFFFFFFF)
            store_word(out, at + 2 * done, _hex_word(four))
        at += 2 * sizes[row]
    offsets[starts.size] = at
