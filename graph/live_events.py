"""Findings as OTLP log events: what opened and closed, with the trace context of the slow step.

A finding that takes the place of another is two events, the end of one and the beginning of the other. Pure: a notice
in, one export request out. The receiver takes it in like anyone's: into the store, and on to where it forwards.
"""

from __future__ import annotations

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import (
    LogRecord,
    ResourceLogs,
    ScopeLogs,
    SeverityNumber,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from rootwalk.graph.live import Change, Notice
from rootwalk.graph.live_findings import LiveFinding
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.export import product_version

__all__ = ["build_events"]

SERVICE_NAME = "rootwalk"
SCOPE_NAME = "rootwalk.graph"
_SEVERITIES = {
    "critical": (SeverityNumber.SEVERITY_NUMBER_ERROR, "ERROR"),
    "warning": (SeverityNumber.SEVERITY_NUMBER_WARN, "WARN"),
}
_CLOSED = (SeverityNumber.SEVERITY_NUMBER_INFO, "INFO")

_Value = str | int | float


def build_events(
    notice: Notice, exemplar: tuple[str, str] | None, now_unix_ns: int
) -> ExportLogsServiceRequest:
    """Return the request that says what happened to one finding.

    Args:
        notice: What happened.
        exemplar: Trace and span id of a slow step, hex; None if unknown.
        now_unix_ns: When it was observed.
    """
    finding = notice.finding
    records = []
    if notice.previous is not None:
        records.append(_closed(notice.previous))
    records.append(
        _closed(finding) if notice.change is Change.CLOSED else _opened(finding, notice.previous)
    )
    for record in records:
        record.observed_time_unix_nano = now_unix_ns
        if exemplar is not None:
            record.trace_id, record.span_id = (bytes.fromhex(part) for part in exemplar)
    resource: dict[str, _Value] = {
        semconv.SERVICE_NAME: SERVICE_NAME,
        semconv.SERVICE_VERSION: product_version(),
        semconv.TRAINING_JOB_ID: finding.job,
        semconv.TRAINING_JOB_ATTEMPT: finding.attempt,
    }
    scope = InstrumentationScope(name=SCOPE_NAME, version=product_version())
    return ExportLogsServiceRequest(
        resource_logs=[
            ResourceLogs(
                resource=Resource(attributes=_key_values(resource)),
                schema_url=semconv.SCHEMA_URL,
                scope_logs=[
                    ScopeLogs(scope=scope, log_records=records, schema_url=semconv.SCHEMA_URL)
                ],
            )
        ]
    )


def _opened(finding: LiveFinding, replaced: LiveFinding | None) -> LogRecord:
    number, text = _SEVERITIES[finding.severity]
    attributes = _attributes(finding)
    if replaced is not None:
        attributes[semconv.ROOTWALK_FINDING_REPLACES] = replaced.id
    return LogRecord(
        event_name=semconv.EVENT_ROOTWALK_FINDING_OPENED,
        time_unix_nano=finding.named_unix_ns,
        severity_number=number,
        severity_text=text,
        body=AnyValue(string_value=finding.text),
        attributes=_key_values(attributes),
    )


def _closed(finding: LiveFinding) -> LogRecord:
    number, text = _CLOSED
    return LogRecord(
        event_name=semconv.EVENT_ROOTWALK_FINDING_CLOSED,
        time_unix_nano=finding.closed_unix_ns or 0,
        severity_number=number,
        severity_text=text,
        body=AnyValue(string_value=finding.text),
        attributes=_key_values(_attributes(finding)),
    )


def _attributes(finding: LiveFinding) -> dict[str, _Value]:
    values: dict[str, _Value | None] = {
        semconv.ROOTWALK_FINDING_ID: finding.id,
        semconv.ROOTWALK_FINDING_REASON: finding.reason,
        semconv.ROOTWALK_FINDING_LAYER: finding.layer,
        semconv.ROOTWALK_FINDING_OWNER: finding.owner,
        semconv.ROOTWALK_FINDING_CONFIDENCE: finding.confidence,
        semconv.ROOTWALK_FINDING_SHARE: finding.share_s,
        semconv.ROOTWALK_FINDING_FIRST_STEP: finding.first_step,
        semconv.ROOTWALK_FINDING_LAST_STEP: finding.last_step,
        semconv.TRAINING_RANK: finding.rank,
        semconv.HOST_NAME: finding.host,
    }
    return {key: value for key, value in values.items() if value is not None}


def _key_values(attributes: dict[str, _Value]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_any_value(value)) for key, value in attributes.items()]


def _any_value(value: _Value) -> AnyValue:
    match value:
        case str():
            return AnyValue(string_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
