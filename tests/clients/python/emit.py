"""One of everything, by the official Python SDK. What is sent is in tests/support/one_of_everything.py."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

# Package of the exporters, and where their compressions are; http/json is a distribution of its own.
PACKAGES = {
    "grpc": ("proto.grpc", "grpc"),
    "http/protobuf": ("proto.http", "opentelemetry.exporter.otlp.proto.http"),
    "http/json": ("json.http", "opentelemetry.exporter.otlp.common.http"),
}
GRPC_COMPRESSIONS = {"none": "NoCompression", "gzip": "Gzip", "deflate": "Deflate"}
EXPORTERS = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
BEGIN_NS = 1_700_000_000_000_000_000


def build_exporter(signal: str, protocol: str, compression: str, endpoint: str) -> Any:
    """Return the SDK's exporter of one signal."""
    module, name = EXPORTERS[signal]
    package, compressions_package = PACKAGES[protocol]
    exporter = getattr(import_module(f"opentelemetry.exporter.otlp.{package}.{module}"), name)
    compressions = import_module(compressions_package).Compression
    if protocol == "grpc":
        address = endpoint.removeprefix("http://")
        chosen = getattr(compressions, GRPC_COMPRESSIONS[compression])
        return exporter(endpoint=address, insecure=True, compression=chosen)
    return exporter(endpoint=f"{endpoint}/v1/{signal}", compression=compressions(compression))


def emit_spans(provider: TracerProvider) -> Any:
    """Emit two spans; return a context inside the first."""
    tracer = provider.get_tracer("clients", "1.2.3")
    linked = SpanContext(
        0x0102030405060708090A0B0C0D0E0F10,
        0x0102030405060708,
        is_remote=True,
        trace_flags=TraceFlags(1),
    )
    parent = tracer.start_span(
        "parent",
        kind=SpanKind.SERVER,
        start_time=BEGIN_NS + 1,
        attributes={
            "text": "grüße", "yes": True, "count": -7, "ratio": 0.25,
            "words": ["a", "b"], "numbers": [1, 2],
        },
        links=[Link(linked, {"why": "linked"})],
    )  # fmt: skip
    parent.add_event("moment", {"n": 1}, timestamp=BEGIN_NS + 2)
    parent.set_status(Status(StatusCode.ERROR, "broken"))
    inside = set_span_in_context(parent)
    child = tracer.start_span(
        "child", context=inside, kind=SpanKind.CLIENT, start_time=BEGIN_NS + 3
    )
    child.end(BEGIN_NS + 4)
    parent.end(BEGIN_NS + 5_000_000_001)
    return inside


def emit_metrics(provider: MeterProvider) -> None:
    """Record one value or some of every kind of instrument."""
    meter = provider.get_meter("clients", "1.2.3")
    meter.create_counter("requests", unit="1").add(5, {"route": "/a"})
    meter.create_up_down_counter("queue").add(-2)
    meter.create_gauge("temperature", unit="Cel").set(21.5)
    latency = meter.create_histogram("latency", "s", explicit_bucket_boundaries_advisory=[10, 20])
    latency.record(1)
    latency.record(30)
    sizes = meter.create_histogram("sizes", "By")
    for size in (1, 2, 4):
        sizes.record(size)


def main(protocol: str, compression: str, endpoint: str, name: str) -> None:
    """Emit everything and wait until it is sent."""
    exporters = [build_exporter(signal, protocol, compression, endpoint) for signal in EXPORTERS]
    resource = Resource({"service.name": name, "client.number": 3})
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(exporters[0]))
    view = View(instrument_name="sizes", aggregation=ExponentialBucketHistogramAggregation())
    reader = PeriodicExportingMetricReader(exporters[1], export_interval_millis=3_600_000)
    meters = MeterProvider([reader], resource=resource, views=[view])
    loggers = LoggerProvider(resource=resource)
    loggers.add_log_record_processor(BatchLogRecordProcessor(exporters[2]))
    inside = emit_spans(tracers)
    emit_metrics(meters)
    loggers.get_logger("clients", "1.2.3").emit(
        LogRecord(
            timestamp=BEGIN_NS + 5,
            context=inside,
            severity_number=SeverityNumber.WARN,
            severity_text="WARN",
            body="it happened",
            attributes={"code": 42},
            event_name="client.event",
        )
    )
    for provider in (tracers, meters, loggers):
        provider.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
