"""Calls of a Flight Recorder dump of which the device's time is known, and the spans that they become.

NCCL's process groups time their operations where `TORCH_NCCL_ENABLE_TIMING=1` (the legacy one), or where
`_enable_collectives_timing` was called (both): an entry that has ended then has `duration_ms`, from when the device's
stream reached the operation to when it ended there, the wait for the other members included. When it began and ended is
known only as the watchdog found out, up to a tenth of a second later: a span ends then, and says that its end is not
known. Opens nothing.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp of PyTorch 2.15 (format 2.10).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.graph.hangs.flight_records import PendingCall, RankRecord
from rootwalk.graph.importers.flight_recorder_fields import Fields
from rootwalk.instrumentation import ids, semconv

__all__ = ["TimedCall", "time_requests", "timed_call"]

# Spans of one request: some 150 KB.
REQUEST_SPANS: Final = 500
# Eleven days: a longer one is no duration.
_MAX_DURATION_MS: Final = 1e9
_ITEM_BYTES: Final = {
    "Bool": 1,
    "Byte": 1,
    "Char": 1,
    "Short": 2,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Float": 4,
    "Long": 8,
    "Double": 8,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
}


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One rank's call of an operation that has ended on its device.

    Attributes:
        call: What it is.
        backend: What has run it, such as `nccl`; empty where the dump does not tell.
        size_bytes: What the rank gives; None where the dump does not tell.
        ended_unix_ns: When the host found that it had ended.
        device_s: Seconds on the device, waiting included.
    """

    call: PendingCall
    backend: str
    size_bytes: int | None
    ended_unix_ns: int
    device_s: float


def timed_call(entry: Fields, call: PendingCall | None) -> TimedCall | None:
    """Return an entry with its time on the device; None where it has none, or none that can be.

    Args:
        entry: Of a dump.
        call: What it is; None for one that only brackets others.
    """
    duration_ms, ended = entry.get("duration_ms"), entry.get("time_discovered_completed_ns")
    if call is None or isinstance(duration_ms, bool) or not isinstance(duration_ms, int | float):
        return None
    if not (math.isfinite(duration_ms) and 0.0 < duration_ms < _MAX_DURATION_MS):
        return None
    if not isinstance(ended, int) or not call.created_unix_ns <= ended < 1 << 63:
        return None
    backend, colon, _ = entry.text("profiling_name").partition(":")
    name = backend if colon else ""
    return TimedCall(call, name, _size_bytes(entry), ended, duration_ms / 1e3)


def _size_bytes(entry: Fields) -> int | None:
    shapes, types = entry.items("input_sizes"), entry.items("input_dtypes")
    try:
        total = sum(
            math.prod(int(extent) for extent in shape) * _ITEM_BYTES[kind]
            for shape, kind in zip(shapes, types, strict=True)
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return total if shapes and 0 <= total < 1 << 62 else None


def time_requests(
    record: RankRecord, calls: Iterable[TimedCall], job: str
) -> Iterator[tuple[bytes, int]]:
    """Yield requests with the spans of a rank's timed calls, as OTLP bytes, and how many each has.

    Args:
        record: The rank's record: who is in which communicator.
        calls: Its timed calls, in order.
        job: Whose they are.
    """
    spans = list(_spans(record, calls, job))
    for first in range(0, len(spans), REQUEST_SPANS):
        part = spans[first : first + REQUEST_SPANS]
        request = ExportTraceServiceRequest()
        own = request.resource_spans.add()
        world = {record.rank}.union(*(frontier.members for frontier in record.frontiers))
        own.resource.attributes.extend(
            [
                _text(semconv.TRAINING_JOB_ID, job),
                _number(semconv.TRAINING_JOB_ATTEMPT, 0),
                _number(semconv.TRAINING_RANK, record.rank),
                _number(semconv.TRAINING_WORLD_SIZE, len(world)),
            ]
        )
        own.scope_spans.add().spans.extend(part)
        yield request.SerializeToString(deterministic=True), len(part)


def _spans(record: RankRecord, calls: Iterable[TimedCall], job: str) -> Iterator[Span]:
    groups = {frontier.communicator: frontier for frontier in record.frontiers}
    # Of a batch under one number the entry that comes last has its time.
    last = {_number_of(timed.call): timed for timed in calls}
    for timed in last.values():
        call, group = timed.call, groups[timed.call.communicator]
        communicator = ids.communicator_id(group.communicator, group.members)
        key = (communicator, call.peer is not None, call.sequence)
        attributes = [
            _text(semconv.COLLECTIVE_OPERATION, call.operation),
            _text(semconv.COLLECTIVE_COMMUNICATOR_ID, communicator),
            _text(semconv.COLLECTIVE_COMMUNICATOR_NAME, group.description or group.communicator),
            _number(semconv.COLLECTIVE_COMMUNICATOR_SIZE, len(group.members)),
            _number(semconv.COLLECTIVE_SEQUENCE, call.sequence),
            _text(semconv.COLLECTIVE_BACKEND, timed.backend),
            _flag(semconv.COLLECTIVE_IS_POINT_TO_POINT, call.peer is not None),
            _flag(semconv.COLLECTIVE_IS_END_KNOWN, False),
            KeyValue(
                key=semconv.COLLECTIVE_DEVICE_TIME, value=AnyValue(double_value=timed.device_s)
            ),
        ]
        if timed.size_bytes is not None:
            attributes.append(_number(semconv.COLLECTIVE_SIZE, timed.size_bytes))
        if call.peer is not None:
            attributes.append(_number(semconv.COLLECTIVE_ROOT, call.peer))
        yield Span(
            trace_id=_hash(16, job, *key),
            # A later launch counts from the beginning again.
            span_id=_hash(8, job, *key, record.rank, call.operation, call.created_unix_ns),
            name=f"collective.{call.operation}",
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=call.created_unix_ns,
            end_time_unix_nano=timed.ended_unix_ns,
            attributes=attributes,
        )


def _number_of(call: PendingCall) -> tuple[object, ...]:
    """Return what tells a call from the others of its rank: a collective by its number, whatever it does."""
    if call.peer is None:
        return (call.communicator, call.sequence)
    return (call.communicator, call.sequence, call.operation, call.peer)


def _hash(size_bytes: int, *parts: object) -> bytes:
    return hashlib.blake2b("|".join(map(str, parts)).encode(), digest_size=size_bytes).digest()


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def _number(key: str, value: int) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(int_value=value))


def _flag(key: str, value: bool) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(bool_value=value))
