"""The verdict's words on the trace of the slow step: a span of its own under the culprit's part of the step.

    training.step ......................................
      training.rank_step (rank 3) ......................    sent long ago, and no back end changes a span
        rootwalk.finding  "rank 3 (gpu-1): CPU ..."         as long as the part that it is about; status error
        forward ........ backward .....

A notice in, one export request out, and none for a finding that opens again on a step that it has marked: no back end
replaces a span, and each would show both. Back ends that mark errors mark the step, and whoever looks for slow steps
finds them by the span's name or reason.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from rootwalk.graph.live.findings import Exemplar, LiveFinding
from rootwalk.graph.live.telemetry import SCOPE_NAME, describe_finding, describe_job
from rootwalk.graph.live.track import Change, Notice
from rootwalk.instrumentation import ids, semconv
from rootwalk.instrumentation.export import product_version
from rootwalk.instrumentation.log_events import key_values

__all__ = ["SPAN_NAME", "Marks", "build_mark"]

SPAN_NAME: Final = "rootwalk.finding"


class Marks:
    """Builds the mark of each finding on each step once."""

    def __init__(self) -> None:
        self._built: set[bytes] = set()

    def build(self, notice: Notice, exemplar: Exemplar | None) -> ExportTraceServiceRequest | None:
        """Return what `build_mark` returns; None where that was returned before."""
        request = build_mark(notice, exemplar)
        if request is None:
            return None
        span_id = request.resource_spans[0].scope_spans[0].spans[0].span_id
        if span_id in self._built:
            return None
        self._built.add(span_id)
        return request


def build_mark(notice: Notice, exemplar: Exemplar | None) -> ExportTraceServiceRequest | None:
    """Return the request with the span that marks a slow step; None where there is nothing to mark.

    Args:
        notice: What happened; what closes was marked when it opened.
        exemplar: The slow step: the culprit's part of it, or where nobody is to blame any rank's.
    """
    if exemplar is None or notice.change is Change.CLOSED:
        return None
    if exemplar.start_unix_ns < 0:  # a sender's clock; OTLP has no such time
        return None
    finding = notice.finding
    attributes = {semconv.TRAINING_STEP_NUMBER: exemplar.step} | describe_finding(finding)
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add(schema_url=semconv.SCHEMA_URL)
    group.resource.attributes.extend(key_values(describe_job(finding.job, finding.attempt)))
    scope = group.scope_spans.add(schema_url=semconv.SCHEMA_URL)
    scope.scope.name, scope.scope.version = SCOPE_NAME, product_version()
    scope.spans.add(
        name=SPAN_NAME,
        trace_id=bytes.fromhex(exemplar.trace_id),
        span_id=ids.finding_id(finding.job, finding.attempt, exemplar.step, finding.id),
        parent_span_id=_parent_id(finding, exemplar),
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=exemplar.start_unix_ns,
        end_time_unix_nano=exemplar.end_unix_ns,
        attributes=key_values(attributes),
        status=Status(code=Status.STATUS_CODE_ERROR, message=finding.text),
    )
    return request


def _parent_id(finding: LiveFinding, exemplar: Exemplar) -> bytes:
    """Return whose child the mark is: the culprit's part of the step, or the whole step where no rank is to blame."""
    trace_id = ids.trace_id(finding.job, finding.attempt, exemplar.step)
    if finding.rank is None and trace_id.hex() == exemplar.trace_id:
        return ids.step_id(finding.job, finding.attempt, exemplar.step)
    return bytes.fromhex(exemplar.span_id)
