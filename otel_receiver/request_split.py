"""Large requests as several small ones, cut on the wire without parsing them; pure.

A parsed request takes ten times its bytes and more. Cut into pieces before it is parsed and journalled, it costs the
memory of one piece, here and where the journal is moved into the store. A request of traces, metrics or logs is a list
of resources with lists of scopes with lists of records; each piece repeats the resource and the scope of its records:

    request  field 1: resource entries      field 2 of those: scope entries      field 2 of those: records

A record is never cut. Profiles are not cut either: their samples share the dictionary of the request.

Source:
    Protobuf encoding: fields are (tag, value), lengths are varints, repeated fields of joined messages add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap
from typing import Final

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.signals import Signal

__all__ = ["MAX_WHOLE_BYTES", "PIECE_BYTES", "is_cut", "read_fields", "split_request"]

# Requests up to here are parsed whole, which is faster; some 50 MB when they are.
MAX_WHOLE_BYTES: Final = 4 * 1024 * 1024
PIECE_BYTES: Final = 1024 * 1024
# Tags of the entries that a request, a resource entry and a scope entry are lists of: length-delimited.
_CHILD_TAGS: Final = (0x0A, 0x12, 0x12)
# A varint of 64 bits.
_MAX_VARINT_BYTES: Final = 10


def is_cut(signal: Signal, size_bytes: int) -> bool:
    """Say whether a request of that size is handled in pieces."""
    return size_bytes > MAX_WHOLE_BYTES and signal is not Signal.PROFILES


def split_request(
    body: bytes | bytearray | mmap, piece_bytes: int = PIECE_BYTES
) -> Iterator[bytes]:
    """Yield requests with the same records in the same order, each of about `piece_bytes` unless one record is larger.

    Raises:
        DecodeError: If the bytes are not protobuf as far as they are looked at.
    """
    yield from _split(memoryview(body), 0, piece_bytes)


def _split(message: memoryview, level: int, piece_bytes: int) -> Iterator[bytes]:
    if len(message) <= piece_bytes or level == len(_CHILD_TAGS):
        yield bytes(message)
        return
    child_tag = _CHILD_TAGS[level]
    # Everything but the list: a resource, a scope, a schema URL. Every piece needs it.
    head = b"".join(
        message[start:end] for tag, start, _, end in read_fields(message) if tag != child_tag
    )
    first = last = 0
    for tag, start, value_start, end in read_fields(message):
        if tag != child_tag:
            continue
        is_large = end - start > piece_bytes
        if is_large or start != last or end - first > piece_bytes:
            if last > first:
                yield head + message[first:last]
            first = start
        last = end
        if is_large:
            for piece in _split(message[value_start:end], level + 1, piece_bytes):
                yield b"".join((head, bytes((child_tag,)), _varint(len(piece)), piece))
            first = end
    if last > first:
        yield head + message[first:last]


def read_fields(message: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield (tag, start, start of the value, end) of each field.

    Raises:
        DecodeError: If the bytes are not protobuf.
    """
    position, end = 0, len(message)
    while position < end:
        start = position
        tag, position = _read_varint(message, position)
        match tag & 7:
            case 2:  # length-delimited
                length, position = _read_varint(message, position)
                value_start, position = position, position + length
            case 0:  # varint
                value_start = position
                _, position = _read_varint(message, position)
            case 1:  # fixed, 64 bits
                value_start, position = position, position + 8
            case 5:  # fixed, 32 bits
                value_start, position = position, position + 4
            case wire_type:
                raise _not_protobuf(message, f"a field of wire type {wire_type}")
        if position > end:
            raise _not_protobuf(message, "a field that goes on after the end")
        yield tag, start, value_start, position


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    for byte in message[position : position + _MAX_VARINT_BYTES]:
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _not_protobuf(message, "a number without an end")


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _not_protobuf(message: memoryview, saw: str) -> DecodeError:
    return DecodeError(
        f"cannot decode a request: saw {saw} in {len(message)} bytes; needs an export request of OTLP",
        hint="check that the exporter speaks OTLP protobuf and posts to the path of its signal",
    )
