"""The official exporters of the Python SDK by all that they offer, and every encoding over HTTP, read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
    OTLPMetricExporter as GrpcMetricExporter,
)
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
    OTLPSpanExporter as GrpcSpanExporter,
)
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as HttpMetricExporter,
)
from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
    OTLPSpanExporter as HttpSpanExporter,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from rootwalk.otel_receiver.content_encoding import ENCODINGS
from rootwalk.otel_receiver.http_server import HTTP_PATHS
from rootwalk.otel_receiver.otlp_json import render_json_message
from rootwalk.otel_receiver.request_checks import parse_request
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import query_store
from support.compressions import COMPRESSIONS
from support.otlp_messages import (
    log_request,
    metric,
    metric_request,
    profile_request,
    span,
    trace_request,
)
from support.receiver_process import running_receiver

RESOURCE = Resource(
    {"service.name": "svc", "training.job.id": "j1", "training.rank": 3, "host.name": "alpha"}
)


@dataclass(frozen=True)
class Transport:
    protocol: str
    compression: str

    def span_exporter(self, grpc_address: str, http_address: str) -> Any:
        if self.protocol == "grpc":
            return GrpcSpanExporter(
                endpoint=grpc_address, insecure=True, compression=_GRPC[self.compression]
            )
        url = f"http://{http_address}/v1/traces"
        return HttpSpanExporter(endpoint=url, compression=Compression(self.compression))

    def metric_exporter(self, grpc_address: str, http_address: str) -> Any:
        if self.protocol == "grpc":
            return GrpcMetricExporter(
                endpoint=grpc_address, insecure=True, compression=_GRPC[self.compression]
            )
        url = f"http://{http_address}/v1/metrics"
        return HttpMetricExporter(endpoint=url, compression=Compression(self.compression))


_GRPC = {
    "none": grpc.Compression.NoCompression,
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
}
TRANSPORTS = [Transport(p, c) for p in ("grpc", "http") for c in ("none", "gzip", "deflate")]


@pytest.fixture(params=TRANSPORTS, ids=lambda t: f"{t.protocol}-{t.compression}")
def transport(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.param
    return chosen


def test_spans_and_metrics_come_back_field_by_field(transport: Transport, tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    with running_receiver(store) as receiver:
        tracer_provider = TracerProvider(resource=RESOURCE)
        exporter = transport.span_exporter(receiver.grpc, receiver.http)
        tracer_provider.add_span_processor(SimpleSpanProcessor(exporter))
        parent, child = _send_spans(tracer_provider)
        tracer_provider.shutdown()
        _send_metrics(transport.metric_exporter(receiver.grpc, receiver.http))
        said = receiver.stop()

    assert "accepted metrics 4, accepted traces 2" in said
    assert not (tmp_path / "s.duckdb.journal").exists()
    _check_spans(store, parent, child)
    _check_metrics(store)


def _send_spans(provider: TracerProvider) -> tuple[SpanContext, SpanContext]:
    tracer = provider.get_tracer("tests")
    parent = tracer.start_span("forward", start_time=1000, kind=SpanKind.SERVER)
    link = SpanContext(7, 8, is_remote=True, trace_flags=TraceFlags(1))
    child = tracer.start_span(
        "inner",
        context=_context_of(parent),
        start_time=1100,
        links=[Link(link, {"why": "collective"})],
        attributes={
            "training.step.number": 5,
            "training.thread.runnable_time": 0.5,
            "words": ["a", "b"],
            "ratio": 1.0,
            "yes": True,
        },
    )
    child.add_event("woke", {"cpu": 1}, timestamp=1150)
    child.set_status(Status(StatusCode.ERROR, "late"))
    child.end(1200)
    parent.end(1300)
    return parent.get_span_context(), child.get_span_context()


def _context_of(span: Any) -> Any:
    from opentelemetry.trace import set_span_in_context

    return set_span_in_context(span)


def _check_spans(store: Path, parent: SpanContext, child: SpanContext) -> None:
    names, _, rows = query_store(store, "SELECT * FROM spans ORDER BY start_unix_ns")
    outer, inner = (dict(zip(names, row, strict=True)) for row in rows)

    assert (outer["name"], outer["kind"], outer["parent_span_id"]) == ("forward", "SERVER", None)
    assert (outer["start_unix_ns"], outer["duration_ns"], outer["status_code"]) == (
        1000,
        300,
        "UNSET",
    )
    assert (outer["trace_id"], outer["span_id"]) == (
        f"{parent.trace_id:032x}",
        f"{parent.span_id:016x}",
    )
    assert (inner["parent_span_id"], inner["span_id"]) == (
        outer["span_id"],
        f"{child.span_id:016x}",
    )
    assert (inner["status_code"], inner["status_message"]) == ("ERROR", "late")
    assert (inner["job"], inner["rank"], inner["step"]) == ("j1", 3, 5)
    assert (inner["service_name"], inner["scope_name"]) == ("svc", "tests")
    assert json.loads(inner["attributes"]) == {
        "training.step.number": 5,
        "training.thread.runnable_time": 0.5,
        "words": {"arrayValue": {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}},
        "ratio": 1.0,
        "yes": True,
    }
    assert json.loads(inner["events"]) == [
        {"unix_ns": 1150, "name": "woke", "attributes": {"cpu": 1}}
    ]
    link = json.loads(inner["links"])[0]
    assert (link["trace_id"], link["span_id"]) == (f"{7:032x}", f"{8:016x}")
    assert link["attributes"] == {"why": "collective"}


def _send_metrics(exporter: Any) -> None:
    # One collection, by shutdown: the interval is longer than the test.
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    views = [View(instrument_name="exp", aggregation=ExponentialBucketHistogramAggregation())]
    provider = MeterProvider([reader], resource=RESOURCE, views=views)
    meter = provider.get_meter("tests")
    meter.create_counter("count", unit="s").add(2.5, {"state": "running"})
    meter.create_gauge("level", unit="1").set(7)
    meter.create_histogram("wait", explicit_bucket_boundaries_advisory=[1.0, 2.0]).record(1.5)
    meter.create_histogram("exp").record(4.0)
    provider.shutdown()


def _check_metrics(store: Path) -> None:
    names, _, rows = query_store(store, "SELECT * FROM metrics")
    by_name = {row[names.index("name")]: dict(zip(names, row, strict=True)) for row in rows}

    assert {name: (row["kind"], row["value"]) for name, row in by_name.items()} == {
        "count": ("sum", 2.5),
        "level": ("gauge", 7.0),
        "wait": ("histogram", 1.5),
        "exp": ("exponential_histogram", 4.0),
    }
    assert (by_name["count"]["unit"], by_name["count"]["is_monotonic"]) == ("s", True)
    assert json.loads(by_name["count"]["attributes"]) == {"state": "running"}
    assert json.loads(by_name["wait"]["data"])["bucket_counts"] == [0, 1, 0]
    assert {(row["job"], row["rank"], row["host_name"]) for row in by_name.values()} == {
        ("j1", 3, "alpha")
    }


def test_every_encoding_brings_every_signal(tmp_path: Path) -> None:
    encodings = [(encoding, kind) for encoding in ENCODINGS for kind in ("x-protobuf", "json")]
    with running_receiver(tmp_path / "s.duckdb") as receiver:
        for number, (encoding, kind) in enumerate(encodings, 1):
            for signal, body in _one_of_each(number, f"{encoding} {kind}").items():
                if kind == "json":
                    body = json.dumps(render_json_message(parse_request(signal, body))).encode()
                response = requests.post(
                    f"http://{receiver.http}{HTTP_PATHS[signal]}",
                    COMPRESSIONS[encoding](body),
                    headers={"Content-Type": f"application/{kind}", "Content-Encoding": encoding},
                    timeout=30,
                )
                assert response.status_code == 200, (encoding, kind, response.content)
        receiver.stop()

    names = {f"{encoding} {kind}" for encoding, kind in encodings}
    expected: dict[str, set[Any]] = {
        "SELECT name FROM spans": names,
        "SELECT name FROM metrics WHERE service_name = 'rootwalk'": names,
        "SELECT body ->> '$' FROM logs": names,
        "SELECT value FROM profile_samples": set(range(1, len(encodings) + 1)),
    }
    for query, sent in expected.items():
        _, _, rows = query_store(receiver.store, query)
        assert len(rows) == len(sent)
        assert {value for (value,) in rows} == sent


def _one_of_each(number: int, name: str) -> dict[Signal, bytes]:
    return {
        Signal.TRACES: trace_request([span(number, name)]),
        Signal.METRICS: metric_request([metric(name, gauge={"data_points": [{"as_int": 1}]})]),
        Signal.LOGS: log_request([name]),
        Signal.PROFILES: profile_request([[{"stack_index": 1, "values": [number]}]]),
    }
