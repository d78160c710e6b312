"""Findings as OTLP log events: what opened and closed, with the trace context of the slow step.

A finding that takes the place of another is two events, the end of one and the beginning of the other. Pure: a notice
in, one export request out. The receiver takes it in like anyone's: into the store, and on to where it forwards.
"""

from __future__ import annotations

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from rootwalk.graph.live import Change, Notice
from rootwalk.graph.live_findings import LiveFinding
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.export import product_version
from rootwalk.instrumentation.log_events import (
    LogEvent,
    Severity,
    Value,
    build_log_request,
    build_resource_logs,
)

__all__ = ["build_events"]

SERVICE_NAME = "rootwalk"
SCOPE_NAME = "rootwalk.graph"
Context = tuple[bytes, bytes] | None
SEVERITIES = {"critical": Severity.ERROR, "warning": Severity.WARN}


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
    context = (bytes.fromhex(exemplar[0]), bytes.fromhex(exemplar[1])) if exemplar else None
    events = []
    if notice.previous is not None:
        events.append(_closed(notice.previous, context, now_unix_ns))
    if notice.change is Change.CLOSED:
        events.append(_closed(finding, context, now_unix_ns))
    else:
        events.append(_opened(finding, notice.previous, context, now_unix_ns))
    resource: dict[str, str | int] = {
        semconv.SERVICE_NAME: SERVICE_NAME,
        semconv.SERVICE_VERSION: product_version(),
        semconv.TRAINING_JOB_ID: finding.job,
        semconv.TRAINING_JOB_ATTEMPT: finding.attempt,
    }
    return build_log_request([build_resource_logs(resource, SCOPE_NAME, events)])


def _opened(
    finding: LiveFinding, replaced: LiveFinding | None, context: Context, now_unix_ns: int
) -> LogEvent:
    attributes = _attributes(finding)
    if replaced is not None:
        attributes[semconv.ROOTWALK_FINDING_REPLACES] = replaced.id
    return LogEvent(
        semconv.EVENT_ROOTWALK_FINDING_OPENED,
        finding.named_unix_ns,
        now_unix_ns,
        SEVERITIES[finding.severity],
        finding.text,
        attributes,
        context,
    )


def _closed(finding: LiveFinding, context: Context, now_unix_ns: int) -> LogEvent:
    return LogEvent(
        semconv.EVENT_ROOTWALK_FINDING_CLOSED,
        finding.closed_unix_ns or 0,
        now_unix_ns,
        Severity.INFO,
        finding.text,
        _attributes(finding),
        context,
    )


def _attributes(finding: LiveFinding) -> dict[str, Value]:
    values: dict[str, Value | None] = {
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
