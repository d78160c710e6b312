"""What is too much: memory, sizes, connections, slowness. Survived, answered, counted, within the limit."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import requests
import zstandard

from rootwalk.otel_receiver.memory_plan import DEFAULT_MAX_MEMORY_BYTES
from rootwalk.otel_receiver.store import query_store
from support.compressions import COMPRESSIONS
from support.otlp_messages import span, trace_request
from support.otlp_paths import TRACE_EXPORT
from support.overload import measure_capacity, overload
from support.peak_memory import PeakMemory
from support.receiver_process import ReceiverProcess, running_receiver
from support.workloads import wait_until

MIB = 1024 * 1024
HEADERS = {"Content-Type": "application/x-protobuf"}
LIMIT = ("--max-memory-bytes", "256MiB", "--telemetry-interval", "0")
LIMIT_BYTES = 256 * MIB


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[ReceiverProcess]:
    with running_receiver(tmp_path / "s.duckdb", *LIMIT) as running:
        yield running


def _url(receiver: ReceiverProcess, path: str = "/v1/traces") -> str:
    return f"http://{receiver.http}{path}"


def _stored_count(receiver: ReceiverProcess) -> int:
    return int(query_store(receiver.store, "SELECT count(*) FROM spans")[2][0][0])


def _large_request(size_bytes: int) -> tuple[bytes, int]:
    """A request of spans with ten attributes; its size and how many spans it has."""
    spans = [span(n + 1, attributes={f"key.{i}": i for i in range(10)}) for n in range(1000)]
    piece = trace_request(spans)
    copies = size_bytes // len(piece)
    return piece * copies, 1000 * copies


def _send_until_stored(receiver: ReceiverProcess, body: bytes, answers: Counter[str]) -> None:
    """One sender that repeats what it is told to repeat, by gRPC."""
    with grpc.insecure_channel(receiver.grpc) as channel:
        export = channel.unary_unary(TRACE_EXPORT)
        while True:
            try:
                export(body, timeout=60)
            except grpc.RpcError as error:
                failed: Any = error
                answers[failed.code().name] += 1
                assert failed.code() is grpc.StatusCode.UNAVAILABLE, failed.details()
                assert "grpc-status-details-bin" in dict(failed.trailing_metadata())
                time.sleep(0.1)
            else:
                answers["OK"] += 1
                return


@pytest.mark.long
def test_one_request_of_the_largest_size(receiver: ReceiverProcess) -> None:
    """By each transport: both say how large a request is before it comes."""
    body, count = _large_request(64 * MIB)
    answers: Counter[str] = Counter()
    with PeakMemory(receiver.process.pid) as peak:
        response = requests.post(_url(receiver), body, headers=HEADERS, timeout=120)
        _send_until_stored(receiver, body, answers)
        said = receiver.stop(timeout_s=120.0)

    assert response.status_code == 200
    assert f"accepted traces {2 * count}" in said
    assert peak.above_idle_bytes < LIMIT_BYTES


@pytest.mark.slow
@pytest.mark.long
def test_one_request_of_the_largest_size_by_grpc(tmp_path: Path) -> None:
    body, count = _large_request(64 * MIB)
    with running_receiver(tmp_path / "s.duckdb", "--telemetry-interval", "0") as receiver:
        with PeakMemory(receiver.process.pid) as peak:
            for _ in range(3):
                _send_until_stored(receiver, body, Counter())
        said = receiver.stop(timeout_s=120.0)

    assert f"accepted traces {3 * count}" in said
    assert peak.above_idle_bytes < DEFAULT_MAX_MEMORY_BYTES


@pytest.mark.slow
@pytest.mark.long
def test_more_large_requests_than_fit_are_told_to_retry_and_all_are_stored(
    receiver: ReceiverProcess,
) -> None:
    """Sixteen senders of 8 MiB at once, each of its own trace; 128 MiB on the wire, over a gigabyte parsed."""
    answers: Counter[str] = Counter()
    senders = []
    for number in range(16):
        spans = [
            span(n + 1, trace_id=(number + 1).to_bytes(16, "big"), attributes={"text": "x" * 1000})
            for n in range(8000)
        ]
        arguments = (receiver, trace_request(spans), answers)
        senders.append(threading.Thread(target=_send_until_stored, args=arguments))
    with PeakMemory(receiver.process.pid) as peak:
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        said = receiver.stop(timeout_s=120.0)

    assert answers["OK"] == 16
    assert peak.above_idle_bytes < LIMIT_BYTES
    assert "accepted traces 128000" in said
    _, _, rows = query_store(receiver.store, "SELECT count(*) FROM spans")
    assert rows == [(128_000,)]


def test_bombs_are_refused_within_the_limit(receiver: ReceiverProcess) -> None:
    bomb = bytes(2048 * MIB // 8)
    packed = {
        "gzip": gzip.compress(bomb, 9),
        "zlib": zlib.compress(bomb, 9),
        "zstd": zstandard.compress(bomb, 19),
        "snappy": COMPRESSIONS["snappy"](bomb),
        "x-snappy-framed": COMPRESSIONS["x-snappy-framed"](bomb),
        "lz4": COMPRESSIONS["lz4"](bomb),
    }
    with PeakMemory(receiver.process.pid) as peak:
        for encoding, body in packed.items():
            response = requests.post(
                _url(receiver), body, headers=HEADERS | {"Content-Encoding": encoding}, timeout=60
            )
            assert response.status_code == 413
            assert "Retry-After" not in response.headers

    assert peak.above_idle_bytes < LIMIT_BYTES
    assert f"refused traces too_large {len(packed)}" in receiver.stop()


def test_ten_thousand_attributes_on_a_span(receiver: ReceiverProcess) -> None:
    body = trace_request([span(1, attributes={f"key.{n}": n for n in range(10_000)})])

    assert requests.post(_url(receiver), body, headers=HEADERS, timeout=60).status_code == 200
    receiver.stop()

    _, _, rows = query_store(receiver.store, "SELECT attributes FROM spans")
    assert rows[0][0].count('"key.') == 10_000


def test_a_thousand_connections_that_say_nothing_keep_nobody_out(
    receiver: ReceiverProcess,
) -> None:
    with contextlib.ExitStack() as stack, PeakMemory(receiver.process.pid) as peak:
        for address in (receiver.http, receiver.grpc):
            host, _, port = address.rpartition(":")
            for _ in range(500):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
        response = requests.post(_url(receiver), b"", headers=HEADERS, timeout=30)
        with grpc.insecure_channel(receiver.grpc) as channel:
            answer = channel.unary_unary(TRACE_EXPORT)(b"", timeout=30)

    assert (response.status_code, answer) == (200, b"")
    assert peak.above_idle_bytes < LIMIT_BYTES


@pytest.mark.long
def test_many_tiny_requests_leave_no_memory_behind(tmp_path: Path) -> None:
    """The short form of a million, from when the first are stored: DuckDB and the kernels are then loaded."""
    options = (*LIMIT, "--flush-interval", "100ms")
    with (
        running_receiver(tmp_path / "s.duckdb", *options) as receiver,
        grpc.insecure_channel(receiver.grpc) as channel,
    ):
        process = psutil.Process(receiver.process.pid)
        export = channel.unary_unary(TRACE_EXPORT)

        def send(count: int) -> None:
            calls = [export.future(trace_request([span(n % 250 + 1)])) for n in range(count)]
            assert {call.result() for call in calls} == {b""}

        for _ in range(2):
            send(1000)
            wait_until(lambda: _stored_count(receiver) == 250, 30.0)
        before_bytes = process.memory_info().rss
        for _ in range(10):
            send(1000)
        grown_bytes = process.memory_info().rss - before_bytes
        said = receiver.stop(timeout_s=120.0)

    assert grown_bytes < 32 * MIB
    assert "accepted traces 12000" in said


@pytest.mark.long
def test_slow_senders_are_told_to_retry(tmp_path: Path) -> None:
    with running_receiver(tmp_path / "s.duckdb", "--read-timeout", "500ms") as receiver:
        host, _, port = receiver.http.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(
                b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
                b"Content-Length: 100\r\n\r\nslow"
            )
            answer = b""
            while part := connection.recv(4096):
                answer += part
        silence = threading.Event()
        with (
            grpc.insecure_channel(receiver.grpc) as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            channel.stream_unary(TRACE_EXPORT)(_nothing_until(silence), timeout=30)
        silence.set()
        said = receiver.stop(timeout_s=120.0)

    error: Any = caught.value
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1" in answer
    assert b"took longer than 0.5 s" in answer
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "grpc-status-details-bin" in dict(error.trailing_metadata())
    assert "failed traces slow_sender 2" in said


def test_a_connection_without_a_request_is_closed(tmp_path: Path) -> None:
    """Headers byte by byte, and none at all; one that has sent a request may be idle for longer."""
    with running_receiver(tmp_path / "s.duckdb", "--read-timeout", "1s") as receiver:
        host, _, port = receiver.http.partition(":")
        with (
            socket.create_connection((host, int(port))) as slow,
            socket.create_connection((host, int(port))) as silent,
            socket.create_connection((host, int(port))) as used,
        ):
            used.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            start_s = time.monotonic()
            for part in (b"POST /v1/traces HTTP/1.1\r\n", b"Host: x\r\n"):
                slow.sendall(part)
                time.sleep(0.4)
            for connection in (slow, silent):
                connection.settimeout(10)
                assert connection.recv(4096) == b""
            assert 0.9 <= time.monotonic() - start_s < 5
            assert used.recv(4096).startswith(b"HTTP/1.1 200 ")
            used.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert used.recv(4096).startswith(b"HTTP/1.1 200 ")


def _nothing_until(silence: threading.Event) -> Iterator[bytes]:
    silence.wait()
    yield from ()


@pytest.mark.long
def test_overload_is_refused_within_the_limit_and_all_is_stored_in_the_end(
    receiver: ReceiverProcess,
) -> None:
    """The short form of `make soak-overload`: four times the capacity for five seconds."""
    with PeakMemory(receiver.process.pid) as peak:
        capacity, before_spans = measure_capacity(receiver, 1.0)
        report = overload(receiver, 4 * capacity, 5.0)
        receiver.stop(timeout_s=300.0)

    _, _, rows = query_store(receiver.store, "SELECT count(*) FROM spans")
    assert report.unexpected == []
    assert report.acknowledged_spans == report.offered_spans
    assert rows == [(before_spans + report.offered_spans,)]
    assert peak.above_idle_bytes < LIMIT_BYTES
