"""Compiled: the spans of trace requests as flat arrays, in one pass over the bytes.

Only for bytes that protobuf has accepted: every length fits and every string is UTF-8. Attributes become JSON text at
once; the known ones are also found by comparing bytes with their names. What is rare is left to protobuf: a request in
a form that encoders do not write (groups, a message field twice, two values in a oneof) is marked odd as a whole, a
span with arrays, maps, bytes, links or events is flagged.

Source:
    opentelemetry-proto 1.10, trace/v1 and common/v1: field numbers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

from rootwalk.otel_receiver.wire_checks import check_request
from rootwalk.otel_receiver.wire_fields import (
    bytes_array,
    find,
    gather,
    gather_hex,
    gather_numbers,
    is_plain,
    is_same,
    read_field,
)
from rootwalk.otel_receiver.wire_text import write_double, write_int, write_string
from rootwalk.otel_receiver.wire_words import WORD_BYTES, to_double

__all__ = [
    "COLUMNS",
    "GROUPS",
    "HAS_EVENTS",
    "HAS_LINKS",
    "HAS_OTHER_VALUES",
    "NUMBERS",
    "SLICES",
    "WORD_BYTES",
    "bytes_array",
    "check_request",
    "count_spans",
    "decode_spans",
    "gather",
    "gather_hex",
    "gather_numbers",
    "key_hash",
]

# Flags of a span that protobuf has to decode.
HAS_OTHER_VALUES: Final = 1
HAS_EVENTS: Final = 2
HAS_LINKS: Final = 4

# Kinds of values, by the field of AnyValue that holds them.
_NO_VALUE: Final = 0
_TEXT: Final = 1
_BOOLEAN: Final = 2
_INTEGER: Final = 3
_DOUBLE: Final = 4
_OTHER: Final = 5
_ODD: Final = 6

# What a known attribute's column takes.
COLUMNS: Final = {"TEXT": 1, "BOOLEAN": 2, "BIGINT": 3, "seconds": 4}

# Slices of one span: where in the bytes they begin and how long they are.
SLICES: Final = (
    "span",
    "trace_id",
    "span_id",
    "parent_span_id",
    "name",
    "trace_state",
    "status_message",
)
_SPAN, _TRACE_ID, _SPAN_ID, _PARENT, _NAME, _TRACE_STATE, _MESSAGE = range(7)
# Numbers of one span.
NUMBERS: Final = ("start_unix_ns", "end_unix_ns", "kind", "status_code", "group", "flags")
_START, _END, _KIND, _STATUS, _GROUP, _FLAGS = range(6)
# One group a scope with spans: slices of the resource and the scope.
GROUPS: Final = ("resource", "resource_bytes", "scope", "scope_bytes")

_MAX_SECONDS: Final = 9223372036
_MAX_NS: Final = 9223372036854775807.0
_NS: Final = 1_000_000_000


@njit(cache=True)
def key_hash(data: Any, at: int, end: int) -> int:
    """Return a number below 512 from a name's length and four of its bytes."""
    size = end - at
    if size < 4:
        return int(size)
    mixed = size * 7 + data[end - 1] * 31 + data[end - 3] * 17 + data[at + size // 2] * 5
    return int((mixed + data[end - 4] * 3) & 511)


@njit(forceinline=True)
def _find_key(data: Any, at: int, end: int, table: Any, names: Any, offsets: Any) -> int:
    """Return the number of a known name, or -1."""
    slot = key_hash(data, at, end)
    while table[slot] >= 0:
        known = table[slot]
        start = offsets[known]
        if offsets[known + 1] - start == end - at and is_same(names, start, data, at, end - at):
            return int(known)
        slot = (slot + 1) & 511
    return -1


@njit(forceinline=True)
def _read_value(data: Any, at: int, end: int) -> Any:
    """Return (kind, bits or offset, end offset) of an AnyValue."""
    kind, bits, stop = _NO_VALUE, np.uint64(0), 0
    while at < end:
        was = kind
        tag, content, at = read_field(data, at)
        if tag == 0x0A:
            kind, bits, stop = _TEXT, content, at
        elif tag == 0x10:
            kind, bits = _BOOLEAN, content
        elif tag == 0x18:
            kind, bits = _INTEGER, content
        elif tag == 0x21:
            kind, bits = _DOUBLE, content
        elif tag == 0x2A or tag == 0x32 or tag == 0x3A or tag == 0x40:
            kind = _OTHER
        elif tag >= 0:
            continue
        if was != _NO_VALUE or tag < 0:
            return _ODD, bits, stop
    return kind, bits, stop


@njit(forceinline=True)
def _write_value(out: Any, at: int, data: Any, kind: int, bits: Any, stop: int) -> int:
    if kind == _TEXT:
        return int(write_string(out, at, data, np.int64(bits), stop))
    if kind == _INTEGER:
        return int(write_int(out, at, bits))
    if kind == _DOUBLE:
        return int(write_double(out, at, bits))
    if kind == _BOOLEAN:
        word = 0x65757274 if bits else 0x736C6166  # the letters of true and false, but the last
        for index in range(4):
            out[at + index] = (word >> (8 * index)) & 0xFF
        if not bits:
            out[at + 4] = 101
        return at + (4 if bits else 5)
    out[at] = 123
    out[at + 1] = 125
    return at + 2


@njit(forceinline=True)
def _promote(
    row: int, known: int, column: int, kind: int, bits: Any, stop: int, promoted: Any
) -> None:
    """Store a known attribute; lengths is -1 where unknown, and where it is of a wrong type it stays what it was."""
    values, lengths, is_seen = promoted
    if not is_seen[known]:
        is_seen[known] = True
        lengths[known, :] = -1
    if column == 4:
        lengths[known, row] = -1
        if kind == _INTEGER:
            seconds = np.int64(bits)
            if -_MAX_SECONDS <= seconds <= _MAX_SECONDS:
                values[known, row] = seconds * _NS
                lengths[known, row] = 0
        elif kind == _DOUBLE:
            duration_ns = to_double(bits) * 1e9
            if abs(duration_ns) < _MAX_NS:
                values[known, row] = np.int64(np.rint(duration_ns))
                lengths[known, row] = 0
    elif kind == column:
        values[known, row] = np.int64(bits)
        lengths[known, row] = stop - np.int64(bits) if kind == _TEXT else 0


@njit
def _read_span(
    data: Any,
    at: int,
    end: int,
    row: int,
    keys: Any,
    slices: Any,
    numbers: Any,
    promoted: Any,
    out: Any,
    mark: int,
) -> int:
    """Fill one row and return the end of its attributes' text, which begins at `mark`; -1 for an odd span."""
    table, names, offsets, columns = keys
    starts, sizes = slices
    starts[_SPAN, row], sizes[_SPAN, row] = at, end - at
    text: Any = mark + 1
    out[mark] = 123
    flags = 0
    has_status = False
    while at < end:
        tag, content, at = read_field(data, at)
        if tag == 0x4A:
            here = np.int64(content)
            key, key_end, kind, bits, stop = np.int64(0), 0, _NO_VALUE, np.uint64(0), 0
            has_value = False
            while here < at:
                inner, start, here = read_field(data, here)
                if inner == 0x0A:
                    key, key_end = np.int64(start), here
                elif inner == 0x12 and not has_value:
                    has_value = True
                    kind, bits, stop = _read_value(data, np.int64(start), here)
                elif inner == 0x12 or inner < 0:
                    kind = _ODD
            if kind == _ODD:
                return -1
            if text != mark + 1:
                out[text] = 44
                text += 1
            text = write_string(out, text, data, key, key_end)
            out[text] = 58
            text = _write_value(out, text + 1, data, kind, bits, stop)
            if kind == _OTHER:
                flags |= HAS_OTHER_VALUES
            known = _find_key(data, key, key_end, table, names, offsets)
            if known >= 0:
                _promote(row, known, columns[known], kind, bits, stop, promoted)
        elif tag == 0x0A:
            starts[_TRACE_ID, row], sizes[_TRACE_ID, row] = content, at - np.int64(content)
        elif tag == 0x12:
            starts[_SPAN_ID, row], sizes[_SPAN_ID, row] = content, at - np.int64(content)
        elif tag == 0x1A:
            starts[_TRACE_STATE, row], sizes[_TRACE_STATE, row] = content, at - np.int64(content)
        elif tag == 0x22:
            starts[_PARENT, row], sizes[_PARENT, row] = content, at - np.int64(content)
        elif tag == 0x2A:
            starts[_NAME, row], sizes[_NAME, row] = content, at - np.int64(content)
        elif tag == 0x30:
            numbers[_KIND, row] = np.int32(np.uint32(content & np.uint64(0xFFFFFFFF)))
        elif tag == 0x39:
            numbers[_START, row] = np.int64(content)
        elif tag == 0x41:
            numbers[_END, row] = np.int64(content)
        elif tag == 0x5A:
            flags |= HAS_EVENTS
        elif tag == 0x6A:
            flags |= HAS_LINKS
        elif tag < 0 or (tag == 0x7A and has_status):
            return -1
        elif tag == 0x7A:
            has_status = True
            here = np.int64(content)
            while here < at:
                inner, start, here = read_field(data, here)
                if inner < 0:
                    return -1
                if inner == 0x12:
                    starts[_MESSAGE, row], sizes[_MESSAGE, row] = start, here - np.int64(start)
                elif inner == 0x18:
                    numbers[_STATUS, row] = np.int32(np.uint32(start & np.uint64(0xFFFFFFFF)))
    numbers[_FLAGS, row] = flags
    out[text] = 125
    return int(text + 1)


@njit
def _decode_request(
    data: Any, at: int, end: int, first: int, first_group: int, into: Any, keys: Any
) -> Any:
    """Fill rows and groups from one request and return the next of both; (-1, -1) for an odd request."""
    slices, numbers, promoted, groups, texts, out = into
    row, group = first, first_group
    while at < end:
        tag, content, at = read_field(data, at)
        if tag < 0:
            return -1, -1
        if tag != 0x0A:
            continue
        begin = np.int64(content)
        if not is_plain(data, begin, at, 0x0A):
            return -1, -1
        resource, resource_bytes = find(data, begin, at, 0x0A)
        while begin < at:
            tag, content, begin = read_field(data, begin)
            if tag != 0x12:
                continue
            here = np.int64(content)
            if not is_plain(data, here, begin, 0x0A):
                return -1, -1
            scope, scope_bytes = find(data, here, begin, 0x0A)
            before = row
            while here < begin:
                tag, content, here = read_field(data, here)
                if tag == 0x12:
                    texts[row + 1] = _read_span(
                        data,
                        np.int64(content),
                        here,
                        row,
                        keys,
                        slices,
                        numbers,
                        promoted,
                        out,
                        texts[row],
                    )
                    if texts[row + 1] < 0:
                        return -1, -1
                    numbers[_GROUP, row] = group
                    row += 1
            if row > before:
                groups[0, group], groups[1, group] = resource, resource_bytes
                groups[2, group], groups[3, group] = scope, scope_bytes
                group += 1
    return row, group


@njit(cache=True)
def decode_spans(data: Any, requests: Any, rows: Any, keys: Any, into: Any, odd: Any) -> int:
    """Fill the arrays from all requests and return the number of groups.

    Args:
        data: Bytes of all requests.
        requests: Offsets of the requests, one more than there are.
        rows: First row of each request, one more than there are.
        keys: Hash table, bytes, offsets and column of the known names.
        into: Tuple of arrays: (starts, sizes) with a row each of `SLICES`, `NUMBERS`, (values, lengths, whether any
            was seen) with a row a known name, `GROUPS` with a column a span, offsets of the attributes' texts, the
            texts. Values and lengths of names that were not seen mean nothing.
        odd: Set to 1 for each odd request; when any is, the arrays mean nothing.
    """
    group = 0
    for request in range(requests.size - 1):
        row = rows[request]
        stop, next_group = _decode_request(
            data, requests[request], requests[request + 1], row, group, into, keys
        )
        if stop < 0:
            odd[request] = 1
            into[4][rows[request + 1]] = into[4][row]
        else:
            group = next_group
    return group


@njit(cache=True)
def count_spans(data: Any, at: int, end: int) -> int:
    """Return the spans of a request; -1 where only protobuf can tell."""
    spans = 0
    while at < end:
        tag, content, at = read_field(data, at)
        if tag < 0:
            return -1
        if tag != 0x0A:
            continue
        begin = np.int64(content)
        while begin < at:
            tag, content, begin = read_field(data, begin)
            if tag < 0:
                return -1
            if tag != 0x12:
                continue
            here = np.int64(content)
            while here < begin:
                tag, content, here = read_field(data, here)
                if tag < 0:
                    return -1
                spans += 1 if tag == 0x12 else 0
    return spans
