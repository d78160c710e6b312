"""Protobuf's wire format, written field by field: for formats that would need a generated class and its versions.

Source: protobuf, "Encoding"; a field that is 0 or empty is left out where `number` and `text` write it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

__all__ = ["double", "fixed64", "message", "number", "packed", "text", "varint"]

_U64: Final = (1 << 64) - 1
_FIXED64: Final = 1
_LENGTH: Final = 2


def varint(value: int) -> bytes:
    """Return a whole number, seven bits a byte; a negative one as 64 bits."""
    value &= _U64
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def number(field: int, value: int) -> bytes:
    """Return a field of a whole number; nothing for 0, which readers take for it."""
    return varint(field << 3) + varint(value) if value else b""


def message(field: int, content: bytes) -> bytes:
    """Return a field of bytes or of a message, empty ones too."""
    return varint(field << 3 | _LENGTH) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """Return a field of text; nothing for an empty one. What UTF-8 cannot say is a question mark."""
    return message(field, value.encode(errors="replace")) if value else b""


def packed(field: int, values: Iterable[int]) -> bytes:
    """Return a field of whole numbers."""
    return message(field, b"".join(map(varint, values)))


def fixed64(field: int, value: int) -> bytes:
    """Return a field of a number of eight bytes."""
    return varint(field << 3 | _FIXED64) + (value & _U64).to_bytes(8, "little")


def double(field: int, value: float) -> bytes:
    """Return a field of a floating-point number."""
    return varint(field << 3 | _FIXED64) + struct.pack("<d", value)
