"""Spans as OTLP bytes, written without message objects: an agent sends tens of thousands a minute.

A span of twenty attributes takes 35 us to build with protobuf's objects, a tenth of that as bytes. What recurs (whole
attributes, the beginnings of those that do not) is encoded once. Standard library only.

Source: opentelemetry-proto 1.x, `trace.proto`, `common.proto`, `resource.proto`; the numbers below are theirs, and the
tests read everything back with the generated classes.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = [
    "EncodedSpans",
    "Value",
    "encode_attribute",
    "encode_doubles",
    "encode_field",
    "encode_resource_spans",
    "encode_span",
]

Value = str | bool | int | float | tuple[str, ...] | tuple[int, ...] | tuple[float, ...]

DOUBLE = struct.Struct("<d")
# start_time_unix_nano (7) and end_time_unix_nano (8), fixed64 each, after kind (6) = SPAN_KIND_INTERNAL (1).
KIND_AND_TIMES = struct.Struct("<2sBQBQ")
KIND_INTERNAL = b"\x30\x01"
START, END = 0x39, 0x41
U64 = (1 << 64) - 1
DOUBLE_ITEM = b"\x0a\x09\x21"  # an `AnyValue` of an array, up to the eight bytes of its double


class EncodedSpans(NamedTuple):
    """Spans of one Resource, ready to be sent.

    Attributes:
        body: One `resource_spans` field of an export request.
        span_count: Spans in it.
    """

    body: bytes
    span_count: int


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def encode_field(tag: int, body: bytes) -> bytes:
    """Return a field of a message that has a length: strings, bytes, messages."""
    size = len(body)
    head = bytes((tag, size)) if size < 0x80 else bytes((tag,)) + _varint(size)
    return head + body


def _any_value(value: Value) -> bytes:
    """Return an `AnyValue`: string_value 1, bool_value 2, int_value 3, double_value 4, array_value 5."""
    if isinstance(value, str):
        return encode_field(0x0A, value.encode(errors="replace"))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value & U64)
    if isinstance(value, float):
        return b"\x21" + DOUBLE.pack(value)
    return encode_field(0x2A, b"".join(encode_field(0x0A, _any_value(item)) for item in value))


def _key_value(key: str, value: Value) -> bytes:
    return encode_field(0x0A, key.encode()) + encode_field(0x12, _any_value(value))


def encode_attribute(key: str, value: Value) -> bytes:
    """Return one attribute as a field of a span; a sequence has to be a tuple."""
    kind = type(value)
    if kind is float:
        return _double_head(key) + DOUBLE.pack(value)
    return _recurring_attribute(key, value, kind)  # type: ignore[arg-type]  # types are hashable


@functools.lru_cache(maxsize=1024)
def _double_head(key: str) -> bytes:
    """Return everything of an attribute but the eight bytes of its value, which come last."""
    return encode_field(0x4A, _key_value(key, 0.0))[: -DOUBLE.size]


def encode_doubles(key: str, values: Sequence[float]) -> bytes:
    """Return one attribute that is a list of numbers which do not recur."""
    items = [DOUBLE_ITEM + DOUBLE.pack(value) for value in values]
    return _doubles_head(key, len(items)) + b"".join(items)


@functools.lru_cache(maxsize=1024)
def _doubles_head(key: str, count: int) -> bytes:
    """Return everything of such an attribute but its items, which come last."""
    whole = encode_field(0x4A, _key_value(key, (0.0,) * count))
    return whole[: len(whole) - count * (len(DOUBLE_ITEM) + DOUBLE.size)]


@functools.lru_cache(maxsize=4096)
def _recurring_attribute(key: str, value: Value, _kind: type) -> bytes:
    """Return one attribute; the type keeps True apart from 1, which are equal."""
    return encode_field(0x4A, _key_value(key, value))


@functools.lru_cache(maxsize=256)
def _name(name: str) -> bytes:
    return encode_field(0x2A, name.encode(errors="replace"))


def encode_span(
    name: str,
    trace_id: bytes,
    span_id: bytes,
    parent_id: bytes,
    bounds_unix_ns: tuple[int, int],
    attributes: Sequence[bytes],
    linked_id: bytes = b"",
) -> bytes:
    """Return an internal span.

    Args:
        name: Its name.
        trace_id: 16 bytes.
        span_id: 8 bytes.
        parent_id: 8 bytes; none for a root.
        bounds_unix_ns: Begin and end.
        attributes: As `encode_attribute` returns them.
        linked_id: 8 bytes of a span of the same trace to link to; none for no link.
    """
    start_ns, end_ns = bounds_unix_ns
    parts = [
        b"\x0a\x10" + trace_id + b"\x12\x08" + span_id,
        b"\x22\x08" + parent_id if parent_id else b"",
        _name(name),
        KIND_AND_TIMES.pack(KIND_INTERNAL, START, start_ns & U64, END, end_ns & U64),
        *attributes,
    ]
    if linked_id:
        parts.append(b"\x6a\x1c\x0a\x10" + trace_id + b"\x12\x08" + linked_id)
    return b"".join(parts)


def encode_resource_spans(
    resource: Mapping[str, str | int],
    spans_by_scope: Mapping[str, Sequence[bytes]],
    version: str,
    schema_url: str,
) -> EncodedSpans:
    """Return spans of one Resource, grouped by instrumentation scope name.

    Args:
        resource: Attributes of the Resource.
        spans_by_scope: Spans as `encode_span` returns them.
        version: Of every scope.
        schema_url: Of the Resource and of every scope.
    """
    parts = [
        encode_field(
            0x0A, b"".join(encode_field(0x0A, _key_value(k, v)) for k, v in resource.items())
        )
    ]
    url = encode_field(0x1A, schema_url.encode())
    count = 0
    for scope, spans in spans_by_scope.items():
        if spans:
            count += len(spans)
            head = encode_field(0x0A, scope.encode()) + encode_field(0x12, version.encode())
            listed = b"".join(b"\x12" + _varint(len(span)) + span for span in spans)
            parts.append(encode_field(0x12, encode_field(0x0A, head) + listed + url))
    parts.append(url)
    return EncodedSpans(encode_field(0x0A, b"".join(parts)), count)
