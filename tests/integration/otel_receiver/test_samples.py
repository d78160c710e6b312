"""Other people's OTLP: every file of tests/data/otlp_samples is accepted or refused as it should be."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rootwalk.otel_receiver.otlp_json import read_json_message, render_json_message
from rootwalk.otel_receiver.signals import Signal
from support.otlp_paths import HTTP_PATHS
from support.receiver_process import ReceiverProcess, running_receiver

SAMPLES = Path(__file__).parents[2] / "data" / "otlp_samples"
PROTOBUF = "application/x-protobuf"
JSON = "application/json"
TRACES, METRICS, LOGS, PROFILES = Signal

# File: its signal, and for each of its requests what is answered: 200, or 400 with what was wrong. Lines of a
# .jsonl file are requests of their own. "partial" is 200 with a span taken out.
SENT: dict[str, tuple[Signal, list[object]]] = {
    "opentelemetry-proto/trace.json": (TRACES, [200]),
    "opentelemetry-proto/metrics.json": (METRICS, [200]),
    "opentelemetry-proto/logs.json": (LOGS, [200]),
    "opentelemetry-proto/events.json": (LOGS, [200]),
    "duckdb-otlp/empty.jsonl": (TRACES, []),
    "duckdb-otlp/whitespace.jsonl": (TRACES, []),
    "duckdb-otlp/logs_document.json": (LOGS, [200]),
    "duckdb-otlp/logs_nulls.jsonl": (LOGS, [200] * 3),
    "duckdb-otlp/logs_simple.jsonl": (LOGS, [200] * 3),
    # Not OTLP but JSON, whose unknown names are ignored; no JSON; ids of three digits; no JSON.
    "duckdb-otlp/malformed.jsonl": (
        TRACES,
        [200, "that are not JSON", 'saw "ABC" at', "that are not JSON"],
    ),
    "duckdb-otlp/metrics_all_types.jsonl": (METRICS, [200] * 5),
    "duckdb-otlp/metrics_exp_histogram_ndjson.jsonl": (METRICS, [200]),
    "duckdb-otlp/metrics_histogram_ndjson.jsonl": (METRICS, [200]),
    "duckdb-otlp/metrics_nulls.jsonl": (METRICS, [200] * 3),
    "duckdb-otlp/metrics_optional_fields.jsonl": (METRICS, [200] * 3),
    "duckdb-otlp/metrics_simple.jsonl": (METRICS, [200] * 3),
    "duckdb-otlp/metrics_summary_only.jsonl": (METRICS, [200] * 2),
    # Enums are integers in OTLP/JSON.
    "duckdb-otlp/metrics_temporality_strings.jsonl": (METRICS, ["needs an enum as an integer"]),
    "duckdb-otlp/multifile_malformed_traces.jsonl": (TRACES, ["that are not JSON"]),
    "duckdb-otlp/multifile_valid_traces.jsonl": (TRACES, [200]),
    "duckdb-otlp/otlp_traces.pb": (TRACES, [200]),
    "duckdb-otlp/otlp_metrics.pb": (METRICS, [200]),
    "duckdb-otlp/otlp_logs.pb": (LOGS, [200]),
    "duckdb-otlp/single_trace.jsonl": (TRACES, [200]),
    "duckdb-otlp/traces_deep_nesting.jsonl": (TRACES, [200]),
    "duckdb-otlp/traces_large_attrs.jsonl": (TRACES, [200]),
    "duckdb-otlp/traces_nulls.jsonl": (TRACES, [200] * 3),
    "duckdb-otlp/traces_simple.jsonl": (TRACES, [200] * 3),
    "duckdb-otlp/ts_boundary_logs.jsonl": (LOGS, [200]),
    "duckdb-otlp/ts_overflow_logs.jsonl": (LOGS, [200]),
    "sig-profiling/profile.otlp": (PROFILES, [200]),
    # A stream of messages with lengths before them: as one message it is none.
    "sig-profiling/k8s.otlp": (PROFILES, ["cannot decode a request for profiles"]),
}
EXAMPLES: dict[str, Any] = {
    "opentelemetry-proto/trace.json": ExportTraceServiceRequest,
    "opentelemetry-proto/metrics.json": ExportMetricsServiceRequest,
    "opentelemetry-proto/logs.json": ExportLogsServiceRequest,
    "opentelemetry-proto/events.json": ExportLogsServiceRequest,
}


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReceiverProcess]:
    with running_receiver(tmp_path_factory.mktemp("samples") / "s.duckdb") as running:
        yield running


def _requests_of(path: Path) -> list[bytes]:
    if path.suffix == ".jsonl":
        return [line for line in path.read_bytes().splitlines() if line.strip()]
    return [path.read_bytes()]


def test_every_sample_is_listed() -> None:
    files = {
        str(path.relative_to(SAMPLES))
        for path in SAMPLES.rglob("*")
        if path.is_file() and path.name != "README.md"
    }

    assert files == set(SENT)


@pytest.mark.parametrize("name", SENT)
def test_a_sample_is_answered_as_it_should_be(receiver: ReceiverProcess, name: str) -> None:
    signal, expected = SENT[name]
    content_type = JSON if "json" in Path(name).suffix else PROTOBUF
    url = f"http://{receiver.http}{HTTP_PATHS[signal]}"
    answers: list[object] = []
    for body, wanted in zip(_requests_of(SAMPLES / name), expected, strict=True):
        response = requests.post(url, body, headers={"Content-Type": content_type}, timeout=30)
        is_refused = isinstance(wanted, str) and wanted.encode() in response.content.replace(
            b'\\"', b'"'
        )
        answers.append(
            wanted if is_refused and response.status_code == 400 else response.status_code
        )
        assert is_refused or b"rejected" not in response.content, response.content

    assert answers == expected


def test_the_messages_of_a_length_prefixed_stream_are_accepted_one_by_one(
    receiver: ReceiverProcess,
) -> None:
    stream = (SAMPLES / "sig-profiling" / "k8s.otlp").read_bytes()
    statuses = []
    position = 0
    while position < len(stream):
        (length,) = struct.unpack_from(">I", stream, position)
        body = stream[position + 4 : position + 4 + length]
        position += 4 + length
        url = f"http://{receiver.http}{HTTP_PATHS[PROFILES]}"
        response = requests.post(url, body, headers={"Content-Type": PROTOBUF}, timeout=30)
        statuses.append((response.status_code, response.content))

    assert position == len(stream)
    assert len(statuses) > 1
    assert set(statuses) == {(200, b"")}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_official_examples_come_back_as_they_were(name: str) -> None:
    """JSON to protobuf to JSON: the same, but for two ways to write one value and for defaults left out."""
    text = (SAMPLES / name).read_bytes()
    message = read_json_message(EXAMPLES[name], text)

    assert _plain(render_json_message(message)) == _plain(json.loads(text))


def _plain(value: Any) -> Any:
    """One form of what may be written in two: numbers as text, hex in lower case, no defaults."""
    match value:
        case dict():
            plain = {key: _plain(inner) for key, inner in value.items()}
            return {
                key: inner for key, inner in plain.items() if inner not in ("", "0", "False", [])
            }
        case list():
            return [_plain(item) for item in value]
        case float() if value.is_integer():
            return str(int(value))
        case str():
            return value.lower()
        case _:
            return str(value)
