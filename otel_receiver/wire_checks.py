"""Compiled: is this a trace request in the plain form that encoders write, and are the ids of its spans ids?

Protobuf decides what is accepted. This says yes only to a part of what protobuf accepts (known fields of the right wire
type, lengths that fit, ASCII text, a moderate depth), in a third of its time; everything else is left to protobuf.
Nothing is read that has not been found to be there.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.otel_receiver.wire_words import WORD_BYTES, load_word

__all__ = ["check_request"]

# Messages in each other; protobuf reads a hundred.
_MAX_DEPTH: Final = 30
# Numbers of known fields are smaller than 32, so that their tags are smaller than this.
_TAGS: Final = 256

# What a field is: not known, a number or bytes, text, an id, or from `_MESSAGE` on a message of a known type.
_UNKNOWN, _PLAIN, _TEXT, _TRACE_ID, _SPAN_ID, _MESSAGE = range(6)
# Wire types by the type of a field in its descriptor, whose class has these names.
_Field: Final = type(Span.DESCRIPTOR.fields[0])
_WIRE_TYPES: Final = {
    **dict.fromkeys((_Field.TYPE_BOOL, _Field.TYPE_ENUM), 0),
    **dict.fromkeys((_Field.TYPE_INT64, _Field.TYPE_INT32), 0),
    **dict.fromkeys((_Field.TYPE_UINT64, _Field.TYPE_UINT32), 0),
    **dict.fromkeys((_Field.TYPE_FIXED64, _Field.TYPE_DOUBLE), 1),
    **dict.fromkeys((_Field.TYPE_STRING, _Field.TYPE_BYTES, _Field.TYPE_MESSAGE), 2),
    _Field.TYPE_FIXED32: 5,
}
_ALL_IDS: Final = 3
_HIGHEST: Final = np.uint64(0x8080808080808080)


def _field_table(root: Any) -> tuple[Any, list[Any]]:
    """Return what each tag of each message is, and the messages; the root is the first."""
    messages, rows = [root], []
    for message in messages:
        row = np.zeros(_TAGS, np.int16)
        for field in message.fields:
            tag = field.number << 3 | _WIRE_TYPES.get(field.type, 7)
            if tag & 7 == 7 or tag >= _TAGS:
                continue
            if field.message_type is not None:
                if field.message_type not in messages:
                    messages.append(field.message_type)
                row[tag] = _MESSAGE + messages.index(field.message_type)
            else:
                row[tag] = _TEXT if field.type == _Field.TYPE_STRING else _PLAIN
        rows.append(row)
    return np.array(rows), messages


_TABLE, _MESSAGES = _field_table(ExportTraceServiceRequest.DESCRIPTOR)
_SPAN_MESSAGE: Final = _MESSAGES.index(Span.DESCRIPTOR)
_TABLE[_SPAN_MESSAGE, 0x0A], _TABLE[_SPAN_MESSAGE, 0x12] = _TRACE_ID, _SPAN_ID


def check_request(body: bytes | bytearray) -> tuple[int, int]:
    """Return (spans, spans without valid ids) of an accepted request; -1 spans where protobuf has to decide."""
    if not body:
        return 0, 0
    data = np.frombuffer(body, np.uint8)
    data.flags.writeable = False  # else a bytearray is another type, and compiled again
    spans, bad = _check(data, _TABLE, _SPAN_MESSAGE)
    return int(spans), int(bad)


@njit(forceinline=True)
def _is_ascii(data: Any, at: int, end: int) -> bool:
    joined = np.uint64(0)
    while at + WORD_BYTES <= end:
        joined |= load_word(data, at)
        at += WORD_BYTES
    while at < end:
        joined |= np.uint64(data[at])
        at += 1
    return bool(joined & _HIGHEST == np.uint64(0))


@njit(forceinline=True)
def _is_id(data: Any, at: int, end: int, size: int) -> bool:
    joined = np.uint64(0)
    if end - at != size:
        return False
    for start in range(at, end, WORD_BYTES):
        joined |= load_word(data, start)
    return bool(joined != np.uint64(0))


@njit(forceinline=True)
def _skip_number(data: Any, at: int, end: int) -> int:
    """Return the offset after a number of up to ten bytes, as encoders write it; -1 for anything else."""
    for index in range(at, min(at + 9, end)):
        if data[index] < 0x80:
            return index + 1
    return at + 10 if at + 10 <= end and data[at + 9] == 1 else -1


@njit(forceinline=True)
def _read_number(data: Any, at: int, end: int) -> Any:
    """Return a number of up to four bytes and the offset after it; -1 for anything else."""
    value = np.int64(0)
    for index in range(min(4, end - at)):
        byte = np.int64(data[at + index])
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    return value, -1


@njit(cache=True)
def _check(data: Any, table: Any, span_message: int) -> Any:
    """Return what `check_request` does; `ends` and `messages` are the messages that are open, one in the other."""
    ends, messages = np.zeros(_MAX_DEPTH, np.int64), np.zeros(_MAX_DEPTH, np.int64)
    ends[0] = data.size
    at, depth, ids, spans, bad = 0, 0, 0, 0, 0
    while True:
        end, message = ends[depth], messages[depth]
        if at == end:
            if message == span_message and ids != _ALL_IDS:
                bad += 1
            if depth == 0:
                return spans, bad
            depth -= 1
            continue
        tag, at = _read_number(data, at, end)
        if at < 0 or tag >= _TAGS or table[message, tag] == _UNKNOWN:
            return -1, 0
        kind, wire_type = table[message, tag], tag & 7
        if wire_type == 0:
            at = _skip_number(data, at, end)
            if at < 0:
                return -1, 0
            continue
        size = 8 if wire_type == 1 else 4
        if wire_type == 2:
            size, at = _read_number(data, at, end)
        if at < 0 or size > end - at:
            return -1, 0
        if kind >= _MESSAGE:
            depth += 1
            if depth == _MAX_DEPTH:
                return -1, 0
            ends[depth], messages[depth] = at + size, kind - _MESSAGE
            if kind - _MESSAGE == span_message:
                spans, ids = spans + 1, 0
            continue
        if kind == _TEXT and not _is_ascii(data, at, at + size):
            return -1, 0
        if kind == _TRACE_ID:
            ids = (ids & 2) | int(_is_id(data, at, at + size, 16))
        elif kind == _SPAN_ID:
            ids = (ids & 1) | int(_is_id(data, at, at + size, 8)) << 1
        at += size
