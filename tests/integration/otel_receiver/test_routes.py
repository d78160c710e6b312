"""One error shape on every route: the specified status, and a google.rpc.Status in the request's content type."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from support.otlp_messages import span, trace_request
from support.otlp_paths import (
    GRPC_PATHS,
    HTTP_PATHS,
    LOG_EXPORT,
    METRIC_EXPORT,
    PROFILE_EXPORT,
    TRACE_EXPORT,
)
from support.receiver_process import ReceiverProcess, running_receiver

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
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
        ("/v1/traces", b"{]", {"Content_Type": JSON}, 400, "that are not JSON"),
        (
            "/v1/logs",
            b'{"resourceLogs": 1}',
            {"Content_Type": f"{JSON}; charset=utf-8"},
            400,
            "saw 1 at resourceLogs",
        ),
        ("/v1/traces", b"x", {"Content_Type": "text/plain"}, 415, 'content type "text/plain"'),
        ("/v1/logs", b"\x0a\xff\xff", {}, 400, "cannot decode a request for logs"),
        ("/v1development/profiles", b"\x0a\xff", {}, 400, "cannot decode a request for profiles"),
        ("/v1/traces", b"plain", {"Content_Encoding": "zstd"}, 400, "cannot decompress"),
        ("/v1/traces", b"plain", {"Content_Encoding": "zlib"}, 400, "cannot decompress"),
        ("/v1/traces", b"plain", {"Content_Encoding": "snappy"}, 400, "cannot decompress"),
        ("/v1/traces", b"plain", {"Content_Encoding": "x-snappy-framed"}, 400, "cannot decompress"),
        ("/v1/traces", b"plain", {"Content_Encoding": "lz4"}, 400, "cannot decompress"),
        ("/v1/traces", b"", {"Expect": "a wonder"}, 417, "cannot meet the Expect header"),
        ("/v1/nothing", b"{}", {"Content_Type": JSON}, 404, 'cannot find the path "/v1/nothing"'),
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
    if headers.get("Content_Type", "").startswith(JSON):
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
        (LOG_EXPORT, b"\x0a\xff\xff", "INVALID_ARGUMENT", "cannot decode a request for logs"),
        (PROFILE_EXPORT, b"\x0a\xff", "INVALID_ARGUMENT", "cannot decode a request for profiles"),
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


@pytest.mark.parametrize("path", HTTP_PATHS.values())
@pytest.mark.parametrize(
    ("content_type", "answered"),
    [
        (PROTOBUF, PROTOBUF),
        ("application/protobuf", PROTOBUF),
        (JSON, JSON),
        (f"{JSON};charset=UTF-8", JSON),
    ],
)
def test_an_empty_request_is_a_success(
    receiver: ReceiverProcess, path: str, content_type: str, answered: str
) -> None:
    response = _post(receiver, path, b"", Content_Type=content_type)

    assert (response.status_code, response.content) == (200, b"{}" if answered == JSON else b"")
    assert response.headers["Content-Type"].startswith(answered)


@pytest.mark.parametrize("method", GRPC_PATHS.values())
def test_an_empty_request_is_a_success_over_grpc(receiver: ReceiverProcess, method: str) -> None:
    with grpc.insecure_channel(receiver.grpc) as channel:
        assert channel.unary_unary(method)(b"", timeout=30) == b""


@pytest.mark.parametrize("path", HTTP_PATHS.values())
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_a_wrong_method(receiver: ReceiverProcess, path: str, method: str) -> None:
    url = f"http://{receiver.http}{path}"

    response = requests.request(method, url, headers={"Content-Type": JSON}, timeout=30)

    assert (response.status_code, response.headers["Allow"]) == (405, "POST")
    assert response.json() == {"code": 12, "message": f"cannot {method} here; needs POST"}


def test_partial_success_says_how_many(receiver: ReceiverProcess) -> None:
    body = trace_request([span(1), span(2, span_id=b"x")])
    as_json = {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "ab", "spanId": "cd"}]}]}]}

    response = _post(receiver, "/v1/traces", body)
    json_response = requests.post(f"http://{receiver.http}/v1/traces", json=as_json, timeout=30)

    answer = ExportTraceServiceResponse.FromString(response.content)
    assert (response.status_code, json_response.status_code) == (200, 200)
    assert answer.partial_success.rejected_spans == 1
    assert json_response.json()["partialSuccess"]["rejectedSpans"] == "1"
    assert "cannot store 1 spans" in json_response.json()["partialSuccess"]["errorMessage"]


def test_a_body_that_is_cut_short_is_refused_and_the_receiver_lives_on(
    receiver: ReceiverProcess,
) -> None:
    host, _, port = receiver.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(
            b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
            b"Content-Length: 100\r\n\r\nshort"
        )
    response = _post(receiver, "/v1/traces", b"")

    assert response.status_code == 200


@pytest.mark.parametrize("path", ["/", "/health"])
def test_health(receiver: ReceiverProcess, path: str) -> None:
    response = requests.get(f"http://{receiver.http}{path}", timeout=30)

    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_a_journal_that_cannot_be_written_is_retryable(tmp_path: Path) -> None:
    """The journal cannot be made again: refused with a time to wait, by both transports, and the receiver lives on."""
    store = tmp_path / "s.duckdb"
    journal = tmp_path / "s.duckdb.journal"
    with running_receiver(store) as receiver:
        (journal / "lock").unlink()
        journal.rmdir()
        journal.touch()  # a file where the folder was
        refused = _post(receiver, "/v1/traces", trace_request([span(1)]))
        with (
            grpc.insecure_channel(receiver.grpc) as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            channel.unary_unary(TRACE_EXPORT)(trace_request([span(1)]), timeout=30)
        journal.unlink()
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


def test_grpc_health(receiver: ReceiverProcess) -> None:
    with grpc.insecure_channel(receiver.grpc) as channel:
        answer = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=30)

    # HealthCheckResponse: field 1 (status) is 1, SERVING.
    assert answer == b"\x08\x01"
