"""The keys that a user's environment holds go where they are meant to go, and nowhere else."""

from __future__ import annotations

import os
from typing import Any

import pytest
import requests
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.metrics.export import MetricsData

from rootwalk.instrumentation.export import (
    OtlpSender,
    SpanSender,
    build_metric_exporter,
    build_resource_spans,
)
from support.otlp_sink import OtlpSink, otlp_sink

KEY = "abc123"


def send_all(sink: OtlpSink) -> None:
    """Send a span, no log record and a metric."""
    sender = SpanSender(sink.endpoint)
    span = Span(trace_id=bytes(16), span_id=bytes(8), name="span")
    assert sender.send([build_resource_spans({}, {"scope": [span.SerializeToString()]})])
    sender.close()
    logs = OtlpSender(sink.endpoint, "logs")
    assert logs.post(b"", 0)
    logs.close()
    exporter = build_metric_exporter(sink.endpoint)
    exporter.export(MetricsData([]))
    exporter.shutdown()


@pytest.mark.parametrize(
    ("named", "is_sent"),
    [
        (None, True),
        ("", True),
        ("{endpoint}", True),
        ("{endpoint}/some/path", True),
        ("https://telemetry.example", False),
        ("http://127.0.0.1:1", False),
    ],
)
def test_headers_are_for_the_endpoint_beside_them(
    monkeypatch: pytest.MonkeyPatch, named: str | None, is_sent: bool
) -> None:
    with otlp_sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={KEY}")
        if named is not None:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", named.format(endpoint=sink.endpoint))
        send_all(sink)
    assert [path for path, _ in sink.headers] == ["/v1/traces", "/v1/logs", "/v1/metrics"]
    sent = [headers.get("api-key") for _, headers in sink.headers]
    assert sent == [KEY if is_sent else None] * 3
    assert os.environ["OTEL_EXPORTER_OTLP_HEADERS"] == f"api-key={KEY}"


def test_one_signal_may_have_an_endpoint_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with otlp_sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={KEY}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://metrics.example")
        send_all(sink)
    assert [headers.get("api-key") for _, headers in sink.headers] == [KEY, KEY, None]


def test_nothing_that_is_sent_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    would_trace: list[bool] = []
    send = requests.Session.send

    def traced_send(session: requests.Session, *arguments: Any, **options: Any) -> Any:
        # What OpenTelemetry's instrumentor of requests puts in this place asks the same.
        would_trace.append(is_instrumentation_enabled())
        return send(session, *arguments, **options)

    monkeypatch.setattr(requests.Session, "send", traced_send)
    with otlp_sink() as sink:
        sender = OtlpSender(sink.endpoint, "logs")
        assert sender.post(b"", 0)
        sender.close()
        requests.get(sink.endpoint, timeout=5)
    assert would_trace == [False, True]
