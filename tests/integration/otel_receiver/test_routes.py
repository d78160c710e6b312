"""One error shape on every route: the specified status, and a google.rpc.Status in the request's content type."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from support.otlp_messages import span, trace_request
from support.receiver_process import ReceiverProcess, running_receiver

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
TRACE_EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
METRIC_EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
TOO_LARGE_BYTES = 64 * 1024 * 1024 + 1


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReceiverProcess]:
    with running_receiver(tmp_path_factory.mktemp("routes") / "s.duckdb") as running:
        yield running


def _post(receiver: ReceiverProcess, path: str, body: bytes, **headers: str) -> requests.Response:
    sent = {"Content-Type": PROTOBUF} | {k.replace("_", "-"): v for k, v in headers.items()}
    return requests.post(f"http://{receiver.http}{path}", body, headers=sent, timeout=30)


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "saw"),
    [
        ("/v1/traces", b"\x0a\xff\xff", {}, 400, "cannot decode a request for traces"),
        ("/v1/metrics", b"\x0a\xff\xff", {}, 400, "cannot decode a request for metrics"),
        ("/v1/traces", b"plain", {"Content_Encoding": "gzip"}, 400, "cannot decompress"),
        ("/v1/traces", b"plain", {"Content_Encoding": "br"}, 400, 'content encoding "br"'),
        ("/v1/traces", b"{}", {"Content_Type": JSON}, 415, 'content type "application/json"'),
        ("/v1/traces", b"x", {"Content_Type": "text/plain"}, 415, 'content type "text/plain"'),
        ("/v1/logs", b"", {}, 404, "cannot accept logs"),
        ("/v1/logs", b"{}", {"Content_Type": JSON}, 404, "cannot accept logs"),
        ("/v1development/profiles", b"", {}, 404, "cannot accept profiles"),
        ("/v2/traces", b"", {}, 404, 'cannot find the path "/v2/traces"'),
        ("/health", b"", {}, 405, "cannot POST here"),
        ("/v1/traces", bytes(TOO_LARGE_BYTES), {}, 413, "saw more than 67108864 bytes"),
        (
            "/v1/traces",
            gzip.compress(bytes(TOO_LARGE_BYTES)),
            {"Content_Encoding": "gzip"},
            413,
            "saw more than 67108864 bytes",
        ),
    ],
)
def test_refusals_over_http(
    receiver: ReceiverProcess,
    path: str,
    body: bytes,
    headers: dict[str, str],
    status: int,
    saw: str,
) -> None:
    response = _post(receiver, path, body, **headers)

    assert response.status_code == status
    if headers.get("Content_Type") == JSON:
        assert response.headers["Content-Type"].startswith(JSON)
        message = json.loads(response.content)["message"]
    else:
        assert response.headers["Content-Type"] == PROTOBUF
        message = Status.FromString(response.content).message
    assert saw in message


@pytest.mark.parametrize(
    ("method", "body", "code", "saw"),
    [
        (TRACE_EXPORT, b"\x0a\xff\xff", "INVALID_ARGUMENT", "cannot decode a request for traces"),
        (METRIC_EXPORT, b"\x0a\xff\xff", "INVALID_ARGUMENT", "cannot decode a request for metrics"),
        (TRACE_EXPORT, bytes(TOO_LARGE_BYTES), "RESOURCE_EXHAUSTED", ""),
        (
            "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
            b"",
            "UNIMPLEMENTED",
            "cannot accept logs",
        ),
        (
            "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
            b"",
            "UNIMPLEMENTED",
            "cannot accept profiles",
        ),
        ("/no.such.Service/Export", b"", "UNIMPLEMENTED", ""),
    ],
)
def test_refusals_over_grpc(
    receiver: ReceiverProcess, method: str, body: bytes, code: str, saw: str
) -> None:
    with grpc.insecure_channel(receiver.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(method)(body, timeout=30)

    error: Any = caught.value
    assert error.code().name == code
    assert saw in error.details()


def test_a_bomb_over_grpc_is_refused(receiver: ReceiverProcess) -> None:
    with grpc.insecure_channel(receiver.grpc) as channel:
        export = channel.unary_unary(TRACE_EXPORT)
        with pytest.raises(grpc.RpcError) as caught:
            export(bytes(TOO_LARGE_BYTES), compression=grpc.Compression.Gzip, timeout=30)

    error: Any = caught.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/metrics"])
def test_an_empty_request_is_a_success(receiver: ReceiverProcess, path: str) -> None:
    response = _post(receiver, path, b"")

    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["Content-Type"] == PROTOBUF


def test_partial_success_says_how_many(receiver: ReceiverProcess) -> None:
    response = _post(receiver, "/v1/traces", trace_request([span(1), span(2, span_id=b"x")]))

    answer = ExportTraceServiceResponse.FromString(response.content)
    assert response.status_code == 200
    assert answer.partial_success.rejected_spans == 1


@pytest.mark.parametrize("path", ["/", "/health"])
def test_health(receiver: ReceiverProcess, path: str) -> None:
    response = requests.get(f"http://{receiver.http}{path}", timeout=30)

    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_a_journal_that_cannot_be_written_is_retryable(tmp_path: Path) -> None:
    """The journal's directory is gone: refused with a time to wait, by both transports, and the receiver lives on."""
    store = tmp_path / "s.duckdb"
    journal = tmp_path / "s.duckdb.journal"
    with running_receiver(store) as receiver:
        (journal / "lock").unlink()
        journal.rmdir()
        refused = _post(receiver, "/v1/traces", trace_request([span(1)]))
        with (
            grpc.insecure_channel(receiver.grpc) as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            channel.unary_unary(TRACE_EXPORT)(trace_request([span(1)]), timeout=30)
        journal.mkdir()
        accepted = _post(receiver, "/v1/traces", trace_request([span(1)]))
        said = receiver.stop()

    error: Any = caught.value
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert Status.FromString(details).details[0].type_url.endswith("google.rpc.RetryInfo")
    assert accepted.status_code == 200
    assert "accepted traces 1" in said
    assert "failed traces unavailable 2" in said
