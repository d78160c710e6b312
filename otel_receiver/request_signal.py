"""Which signal a request in protobuf is of, where no route says it; pure.

Requests of all signals are lists of lists of lists, and the fields of the first record in them differ:

    span        1 trace id, bytes         7, 8 times, fixed64
    metric      1 name, bytes             7 sum, bytes
    log record  1 time, fixed64           11 observed time, fixed64
    profiles    the request has a dictionary as field 2, which the others do not have

Source:
    opentelemetry-proto 1.10.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.request_split import read_fields
from rootwalk.otel_receiver.signals import Signal

__all__ = ["find_signal"]

_RESOURCES: Final = 0x0A
_DICTIONARY: Final = 0x12
# Scopes of a resource, records of a scope.
_CHILDREN: Final = 0x12
_ID_OR_NAME: Final = 0x0A
_SPAN_ID: Final = 0x12
_SPAN_TIMES: Final = frozenset((7 << 3 | 1, 8 << 3 | 1))
_TRACE_ID_BYTES: Final = 16
_SPAN_ID_BYTES: Final = 8


def find_signal(body: memoryview) -> Signal:
    """Return the signal of a request; traces where there is no record in it.

    Raises:
        DecodeError: If the bytes are no request as far as they are looked at.
    """
    for tag, *_ in read_fields(body):
        if tag == _DICTIONARY:
            return Signal.PROFILES
        if tag != _RESOURCES:
            raise DecodeError(
                f"cannot decode a request: saw field {tag >> 3} in {len(body)} bytes; needs a request of OTLP"
            )
    records = (
        record
        for resource in _children(body, _RESOURCES)
        for scope in _children(resource, _CHILDREN)
        for record in _children(scope, _CHILDREN)
    )
    for record in records:
        return _signal_of(record)
    return Signal.TRACES


def _children(message: memoryview, child_tag: int) -> Iterator[memoryview]:
    for tag, _, value_start, end in read_fields(message):
        if tag == child_tag:
            yield message[value_start:end]


def _signal_of(record: memoryview) -> Signal:
    fields = {tag: record[start:end] for tag, _, start, end in read_fields(record)}
    sizes_bytes = {tag: len(field) for tag, field in fields.items()}
    if _ID_OR_NAME not in sizes_bytes:
        return Signal.LOGS
    has_ids = sizes_bytes[_ID_OR_NAME] == _TRACE_ID_BYTES and (
        sizes_bytes.get(_SPAN_ID) == _SPAN_ID_BYTES
    )
    # A metric's name may be as long as an id; of ids one in ten millions is text.
    has_ids = has_ids and not _is_text(fields[_ID_OR_NAME])
    is_span = has_ids or not _SPAN_TIMES.isdisjoint(sizes_bytes)
    return Signal.TRACES if is_span else Signal.METRICS


def _is_text(field: memoryview) -> bool:
    value = bytes(field)
    return value.isascii() and value.decode("ascii").isprintable()
