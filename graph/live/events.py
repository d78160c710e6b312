"""Findings as OTLP log events: what opened and closed, with the trace context of the slow step.

A finding that takes the place of another is two events, the end of one and the beginning of the other. Pure: a notice
in, one export request out. The receiver takes it in like anyone's: into the store, and on to where it forwards.
"""

from __future__ import annotations

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from rootwalk.graph.live.findings import Exemplar, LiveFinding
from rootwalk.graph.live.telemetry import SCOPE_NAME, describe_finding, describe_job
from rootwalk.graph.live.track import Change, Notice
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.log_events import (
    LogEvent,
    Severity,
    build_log_request,
    build_resource_logs,
)

__all__ = ["build_events"]

Context = tuple[bytes, bytes] | None
SEVERITIES = {"critical": Severity.ERROR, "warning": Severity.WARN}


def build_events(
    notice: Notice, exemplar: Exemplar | None, now_unix_ns: int
) -> ExportLogsServiceRequest:
    """Return the request that says what happened to one finding.

    Args:
        notice: What happened.
        exemplar: The slow step; None if unknown.
        now_unix_ns: When it was observed.
    """
    finding = notice.finding
    context = (
        (bytes.fromhex(exemplar.trace_id), bytes.fromhex(exemplar.span_id)) if exemplar else None
    )
    events = []
    if notice.previous is not None:
        events.append(_closed(notice.previous, context, now_unix_ns))
    if notice.change is Change.CLOSED:
        events.append(_closed(finding, context, now_unix_ns))
    else:
        events.append(_opened(finding, notice.previous, context, now_unix_ns))
    resource = describe_job(finding.job, finding.attempt)
    return build_log_request([build_resource_logs(resource, SCOPE_NAME, events)])


def _opened(
    finding: LiveFinding, replaced: LiveFinding | None, context: Context, now_unix_ns: int
) -> LogEvent:
    attributes = describe_finding(finding)
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
        describe_finding(finding),
        context,
    )
