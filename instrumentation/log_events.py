"""Log events as one OTLP export request: what happened, when, how bad, and the trace context where it is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
)
from opentelemetry.proto.logs.v1.logs_pb2 import (
    LogRecord,
    ResourceLogs,
    ScopeLogs,
    SeverityNumber,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.export import product_version
from rootwalk.instrumentation.otlp_wire import encode_field

# Field 12, with a length.
EVENT_NAME_TAG = 0x62

__all__ = [
    "LogEvent",
    "Severity",
    "Value",
    "build_log_request",
    "build_resource_logs",
    "key_values",
]

Value = str | bool | int | float | tuple[str, ...] | tuple[int, ...]


class Severity(Enum):
    """How bad it is: OTLP's number; its text is the name."""

    INFO = SeverityNumber.SEVERITY_NUMBER_INFO
    WARN = SeverityNumber.SEVERITY_NUMBER_WARN
    ERROR = SeverityNumber.SEVERITY_NUMBER_ERROR


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One event.

    Attributes:
        name: A name of `semconv.EVENTS`.
        unix_ns: When it happened.
        observed_unix_ns: When it was seen.
        severity: How bad it is.
        text: One line for people.
        attributes: By the registry.
        context: Trace and span id that it belongs to; None where not known.
    """

    name: str
    unix_ns: int
    observed_unix_ns: int
    severity: Severity
    text: str
    attributes: Mapping[str, Value] = field(default_factory=dict)
    context: tuple[bytes, bytes] | None = None


def build_resource_logs(
    resource: Mapping[str, str | int], scope: str, events: Iterable[LogEvent]
) -> ResourceLogs:
    """Return events of one Resource and instrumentation scope."""
    records = [_log_record(event) for event in events]
    return ResourceLogs(
        resource=Resource(attributes=key_values(resource)),
        schema_url=semconv.SCHEMA_URL,
        scope_logs=[
            ScopeLogs(
                scope=InstrumentationScope(name=scope, version=product_version()),
                log_records=records,
                schema_url=semconv.SCHEMA_URL,
            )
        ],
    )


def build_log_request(batches: Iterable[ResourceLogs]) -> ExportLogsServiceRequest:
    """Return one request for all of these."""
    return ExportLogsServiceRequest(resource_logs=batches)


def _log_record(event: LogEvent) -> LogRecord:
    trace_id, span_id = event.context or (b"", b"")
    record = LogRecord(
        time_unix_nano=event.unix_ns,
        observed_time_unix_nano=event.observed_unix_ns,
        severity_number=event.severity.value,
        severity_text=event.severity.name,
        body=AnyValue(string_value=event.text),
        attributes=key_values(event.attributes),
        trace_id=trace_id,
        span_id=span_id,
    )
    # The field is younger (1.5) than the messages of some training images, which keep and send what they do not know.
    record.MergeFromString(encode_field(EVENT_NAME_TAG, event.name.encode()))
    return record


def key_values(attributes: Mapping[str, Value]) -> list[KeyValue]:
    """Return attributes as OTLP has them."""
    return [KeyValue(key=key, value=_any_value(value)) for key, value in attributes.items()]


def _any_value(value: Value) -> AnyValue:
    match value:
        case str():
            return AnyValue(string_value=value)
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case tuple():
            return AnyValue(array_value=ArrayValue(values=[_any_value(one) for one in value]))
