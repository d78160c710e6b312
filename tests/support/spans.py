"""Spans as they go out, read back with the generated OTLP classes."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from rootwalk.instrumentation.export import EncodedSpans
from support.live_check import note_spans

__all__ = ["decode_attributes", "decode_resource_spans", "decode_spans"]


def decode_attributes(encoded: Iterable[bytes]) -> dict[str, AnyValue]:
    """Return attributes that were written as fields of a span."""
    span = Span.FromString(b"".join(encoded))
    note_spans([span])
    return {one.key: one.value for one in span.attributes}


def decode_spans(encoded: Iterable[bytes]) -> list[Span]:
    """Return the spans that `SpanBuilder` or `StallCollector` have written."""
    spans = [Span.FromString(one) for one in encoded]
    note_spans(spans)
    return spans


def decode_resource_spans(batch: EncodedSpans) -> ResourceSpans:
    """Return one batch as an endpoint sees it."""
    resource_spans: ResourceSpans
    (resource_spans,) = ExportTraceServiceRequest.FromString(batch.body).resource_spans
    return resource_spans
