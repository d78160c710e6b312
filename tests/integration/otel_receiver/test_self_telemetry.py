"""What the receiver says of itself: the same counts in its log, as Prometheus text and as OTLP in its own store."""

from __future__ import annotations

import time
from pathlib import Path

import requests

from rootwalk.otel_receiver.store import query_store
from support.otlp_messages import log_request, metric, metric_request, span, trace_request
from support.receiver_process import ReceiverProcess, running_receiver

SPANS = "otelcol_receiver_accepted_spans"
REQUESTS = "otelcol_receiver_requests"
PROTOBUF = {"Content-Type": "application/x-protobuf"}


def _post(receiver: ReceiverProcess, path: str, body: bytes) -> int:
    url = f"http://{receiver.http}{path}"
    return requests.post(url, body, headers=PROTOBUF, timeout=30).status_code


def _send(receiver: ReceiverProcess) -> None:
    """Three spans of which one has no id, two points, one log record, and a request that is none."""
    spans = trace_request([span(1), span(2), span(3, span_id=b"")])
    points = metric_request([metric("g", gauge={"data_points": [{"as_int": 1}, {"as_int": 2}]})])
    statuses = [
        _post(receiver, "/v1/traces", spans),
        _post(receiver, "/v1/metrics", points),
        _post(receiver, "/v1/logs", log_request(["a"])),
        _post(receiver, "/v1/logs", b"\x0a\xff"),
    ]
    assert statuses == [200, 200, 200, 400]


def _readings(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_prometheus_text(tmp_path: Path) -> None:
    options = ["--metrics-address", "127.0.0.1:0", "--telemetry-interval", "0"]
    with running_receiver(tmp_path / "s.duckdb", *options) as receiver:
        _send(receiver)
        response = requests.get(f"http://{receiver.metrics}/metrics", timeout=30)

    readings = _readings(response.text)
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert readings['otelcol_receiver_accepted_spans{receiver="otlp"}'] == 2
    assert readings['otelcol_receiver_refused_spans{receiver="otlp"}'] == 1
    assert readings['otelcol_receiver_accepted_metric_points{receiver="otlp"}'] == 2
    assert readings['otelcol_receiver_accepted_log_records{receiver="otlp"}'] == 1
    assert readings['otelcol_receiver_accepted_profile_samples{receiver="otlp"}'] == 0
    logs = 'receiver="otlp",signal="logs",transport="http"'
    assert readings[f'otelcol_receiver_requests{{{logs},outcome="success"}}'] == 1
    refused = f'{{{logs},outcome="refused",error_type="malformed"}}'
    assert readings[f"otelcol_receiver_requests{refused}"] == 1
    assert readings[f'otelcol_receiver_request_duration_seconds_bucket{{{logs},le="+Inf"}}'] == 2
    assert readings[f"otelcol_receiver_request_duration_seconds_count{{{logs}}}"] == 2
    assert readings["otelcol_process_memory_rss"] > 10_000_000
    assert 'otelcol_exporter_queue_size{exporter="store"}' in readings


def test_own_metrics_are_in_the_store_and_not_among_those_received(tmp_path: Path) -> None:
    options = ["--telemetry-interval", "300ms", "--flush-interval", "100ms"]
    with running_receiver(tmp_path / "s.duckdb", *options) as receiver:
        _send(receiver)
        deadline = time.monotonic() + 30
        # A telling may fall between two of the four requests: the last one has them all.
        while (told := _own_values(receiver.store, REQUESTS))[-1:] != [4.0]:
            assert time.monotonic() < deadline, told
            time.sleep(0.1)
        values = _own_values(receiver.store, SPANS)
        said = receiver.stop()

    # Without requests there is nothing new to say.
    assert values[-1] == 2.0
    assert _own_values(receiver.store, SPANS) == values
    assert _own_values(receiver.store, REQUESTS) == told
    assert "accepted logs 1, accepted metrics 2, accepted traces 2" in said


def _own_values(store: Path, name: str) -> list[float]:
    """What the receiver told of itself under a name, one sum of all its series for each telling."""
    query = (
        "SELECT name, sum(value) FROM metrics WHERE service_name = 'rootwalk-receiver'"
        " GROUP BY name, unix_ns ORDER BY unix_ns"
    )
    _, _, rows = query_store(store, query)
    return [value for of, value in rows if of == name]


def test_metrics_are_not_shown_where_telemetry_is_received(tmp_path: Path) -> None:
    with running_receiver(tmp_path / "s.duckdb") as receiver:
        response = requests.get(f"http://{receiver.http}/metrics", timeout=30)

    assert response.status_code == 404
