"""A real OTLP/HTTP server on loopback that remembers what it was sent; it can be told to be away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.live_check import check_request, note_profiles


class OtlpSink:
    """What came in; `status` is what the next requests are answered with."""

    def __init__(self) -> None:
        self.status = 200
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.logs: list[ExportLogsServiceRequest] = []
        self.profiles: list[Any] = []
        self.headers: list[tuple[str, dict[str, str]]] = []
        self.endpoint = ""

    def spans(self) -> list[Span]:
        """Return all spans, in the order they came."""
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def events(self) -> list[tuple[dict[str, object], LogRecord]]:
        """Return all log records, each with the attributes of its Resource, in the order they came."""
        return [
            ({entry.key: _plain(entry) for entry in resource.resource.attributes}, record)
            for request in self.logs
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def metric_names(self) -> set[str]:
        """Return the names of all metrics that came."""
        return {
            metric.name
            for request in self.metrics
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def take(self, path: str, body: bytes) -> int:
        """Take one request; return the HTTP status."""
        if self.status == 200:
            if path == "/v1/traces":
                self.traces.append(ExportTraceServiceRequest.FromString(body))
            elif path == "/v1/logs":
                self.logs.append(ExportLogsServiceRequest.FromString(body))
            elif path == "/v1development/profiles":
                self.profiles.append(ExportProfilesServiceRequest.FromString(body))
            else:
                self.metrics.append(ExportMetricsServiceRequest.FromString(body))
        return self.status


def attributes(span: Span | LogRecord) -> dict[str, object]:
    """Return the attributes of a span or log record as plain values."""
    return {entry.key: _plain(entry) for entry in span.attributes}


def _plain(entry: KeyValue) -> object:
    kind = entry.value.WhichOneof("value")
    if kind == "array_value":
        return [
            getattr(item, str(item.WhichOneof("value"))) for item in entry.value.array_value.values
        ]
    value: object = getattr(entry.value, str(kind))
    return value


@contextmanager
def otlp_sink() -> Iterator[OtlpSink]:
    """Run a sink for the duration of a block; what came of ours must be as the registry says."""
    sink = OtlpSink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            sink.headers.append((self.path, headers))
            self.send_response(sink.take(self.path, body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    sink.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    requests = [*sink.traces, *sink.metrics, *sink.logs]
    told = sorted({line for request in requests for line in check_request(request)})
    assert told == []
    for profiles in sink.profiles:
        note_profiles(profiles)
