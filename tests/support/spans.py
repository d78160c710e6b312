"""Spans as they go out, read back with the generated OTLP classes."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from rootwalk.instrumentation.export import EncodedSpans

__all__ = ["decode_resource_spans", "decode_spans"]


def decode_spans(encoded: Iterable[bytes]) -> list[Span]:
    """Return the spans that `SpanBuilder` or `StallCollector` have written."""
    return [Span.FromString(one) for one in encoded]


def decode_resource_spans(batch: EncodedSpans) -> ResourceSpans:
    """Return one batch as an endpoint sees it."""
    (resource_spans,) = ExportTraceServiceRequest.FromString(batch.body).resource_spans
    return resource_spans
