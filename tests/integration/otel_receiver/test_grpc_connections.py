"""Connections of gRPC clients over a real socket: how they begin and end, and what a bad one may cost."""

from __future__ import annotations

import base64
import contextlib
import signal
import ssl
from pathlib import Path

import grpc
import pytest
from google.rpc.status_pb2 import Status

from rootwalk.otel_receiver.store import query_store
from support.certificates import issue_certificates
from support.http2_client import (
    DATA,
    END_STREAM,
    GOAWAY,
    PING,
    RST_STREAM,
    Http2Client,
    ask,
    frame,
    message,
)
from support.otlp_messages import span, trace_request
from support.otlp_paths import TRACE_EXPORT
from support.peak_memory import PeakMemory
from support.receiver_process import running_receiver

MIB = 1024 * 1024
LIMIT_BYTES = 256 * MIB


def test_tls_needs_no_more_than_alpn(tmp_path: Path) -> None:
    files = issue_certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(files.authority))
    context.set_alpn_protocols(["http/1.1", "h2"])
    options = ("--tls-cert", str(files.server), "--tls-key", str(files.server_key))
    body = trace_request([span(1, attributes={"x": "y" * 300_000})])
    with running_receiver(tmp_path / "s.duckdb", *options) as receiver:
        with Http2Client(receiver.grpc, tls=context) as client:
            assert isinstance(client.socket, ssl.SSLSocket)
            chosen = client.socket.selected_alpn_protocol()
            client.send(client.request(1))
            answer = client.read_answer(1)
        credentials = grpc.ssl_channel_credentials(files.authority.read_bytes())
        with grpc.secure_channel(receiver.grpc, credentials) as channel:
            channel.unary_unary(TRACE_EXPORT)(body, timeout=30)
        said = receiver.stop()

    assert (chosen, answer.status) == ("h2", "0")
    assert "accepted traces 1" in said


def test_requests_in_progress_end_when_the_receiver_stops(tmp_path: Path) -> None:
    body = message(trace_request([span(1, "late")]))
    with running_receiver(tmp_path / "s.duckdb") as receiver:
        with Http2Client(receiver.grpc) as client:
            client.send(client.headers(1), frame(DATA, 0, 1, body[:10]))
            client.send(frame(PING, payload=bytes(8)))
            client.read_until(PING)
            receiver.process.send_signal(signal.SIGTERM)
            goaway = client.read_until(GOAWAY)
            client.send(client.request(3), frame(DATA, END_STREAM, 1, body[10:]))
            answer = client.read_answer(1)
            rest = client.read_to_end()
        receiver.process.communicate(timeout=30)

    assert (goaway.payload[:4], goaway.code) == ((1).to_bytes(4, "big"), 0)
    assert answer.status == "0"
    assert rest == []
    assert query_store(receiver.store, "SELECT name FROM spans")[2] == [("late",)]


def test_keepalive_and_what_does_not_end_in_time(tmp_path: Path) -> None:
    options = ("--keepalive", "300ms", "--read-timeout", "1s")
    with running_receiver(tmp_path / "s.duckdb", *options) as receiver:
        with Http2Client(receiver.grpc, opening=b"") as silent:
            assert silent.read_to_end()[-1].kind == GOAWAY
        with Http2Client(receiver.grpc) as client:
            ping = client.read_until(PING)
            client.send(frame(PING, 1, 0, ping.payload))
            client.send(client.request(1))
            assert client.read_answer(1).status == "0"
            # A header block without its end.
            client.send(client.headers(3, flags=0))
            assert client.read_until(GOAWAY).code == 11


def test_a_slow_body_is_told_to_come_again(tmp_path: Path) -> None:
    with running_receiver(tmp_path / "s.duckdb", "--read-timeout", "300ms") as receiver:
        with Http2Client(receiver.grpc) as client:
            client.send(client.headers(1), frame(DATA, 0, 1, message(b"x" * 100)[:50]))
            client.send(client.headers(3), frame(DATA, 0, 3, message(b"x" * 100_000)[:50]))
            client.send(client.headers(5), frame(DATA, 0, 5, message(b"")))
            answers = client.read_answers(1, 3, 5)
        said = receiver.stop()

    details = answers[1].fields["grpc-status-details-bin"]
    status = Status.FromString(base64.b64decode(details + "=" * (-len(details) % 4)))
    assert {answer.status for answer in answers.values()} == {"14"}
    assert "took longer than 0.3 s" in status.message
    assert status.details[0].type_url.endswith("google.rpc.RetryInfo")
    assert "failed traces slow_sender 3" in said


def test_a_sender_that_goes_leaves_nothing_behind(tmp_path: Path) -> None:
    """Before a message, within one and when it is complete; by a reset and with the connection."""
    whole = message(trace_request([span(1, "x" * 1000)]))
    with running_receiver(tmp_path / "s.duckdb", "--telemetry-interval", "0") as receiver:
        for part in (b"", whole[:3], whole[:100]):
            for is_reset in (True, False):
                with Http2Client(receiver.grpc) as client:
                    client.send(client.headers(1), frame(DATA, 0, 1, part))
                    if is_reset:
                        client.send(frame(RST_STREAM, 0, 1, (8).to_bytes(4, "big")))
                        client.send(client.request(3))
                        assert client.read_answer(3).status == "0"
        with Http2Client(receiver.grpc) as client:
            client.send(client.headers(1), frame(DATA, END_STREAM, 1, whole))
        said = receiver.stop()

    assert "internal" not in said
    assert "malformed" not in said
    assert "Traceback" not in said


def test_rapid_resets_end_the_connection_and_nobody_else_notices(tmp_path: Path) -> None:
    with running_receiver(tmp_path / "s.duckdb", "--max-memory-bytes", "256MiB") as receiver:
        body = message(trace_request([span(1, "x" * 10_000)]))
        cancel = (8).to_bytes(4, "big")
        with Http2Client(receiver.grpc) as client, PeakMemory(receiver.process.pid) as peak:
            with contextlib.suppress(ConnectionError):
                for first in range(1, 20_000, 200):
                    client.send(
                        *(
                            client.headers(number)
                            + frame(DATA, 0, number, body)
                            + frame(RST_STREAM, 0, number, cancel)
                            for number in range(first, first + 200, 2)
                        )
                    )
                    answer = ask(receiver.grpc, message(b""))
                    assert answer.status == "0"
            last = client.read_until(GOAWAY)
        assert ask(receiver.grpc, body).status == "0"
        said = receiver.stop()

    assert last.code == 11  # ENHANCE_YOUR_CALM
    assert peak.above_idle_bytes < LIMIT_BYTES
    assert "broken_protocol 1" in said


def test_a_peer_that_does_not_read_does_not_grow_the_receiver(tmp_path: Path) -> None:
    """Pings are answered into the kernel's buffers; when these are full the peer is not read any more."""
    with running_receiver(tmp_path / "s.duckdb", "--max-memory-bytes", "256MiB") as receiver:
        with Http2Client(receiver.grpc) as client, PeakMemory(receiver.process.pid) as peak:
            client.socket.settimeout(1.0)
            request = client.request(1)
            number = 1
            with contextlib.suppress(TimeoutError, ConnectionError):
                while number < 2_000_000:
                    client.send(*(request for _ in range(1)), frame(PING, payload=bytes(8)) * 4)
                    number += 2
                    request = client.request(number)
        assert ask(receiver.grpc, message(b"")).status == "0"

    assert peak.above_idle_bytes < 64 * MIB


@pytest.mark.long
def test_a_thousand_connections_with_a_request_each(tmp_path: Path) -> None:
    """Each has sent all that it may send before memory is reserved; then all of it comes in."""
    body = message(trace_request([span(1, attributes={"x": "y" * 100_000})]))
    first, rest = body[:8000], [body[at : at + 16_000] for at in range(8000, len(body), 16_000)]
    options = ("--max-memory-bytes", "256MiB", "--read-timeout", "60s")
    with (
        running_receiver(tmp_path / "s.duckdb", *options) as receiver,
        contextlib.ExitStack() as stack,
        PeakMemory(receiver.process.pid) as peak,
    ):
        clients = [stack.enter_context(Http2Client(receiver.grpc)) for _ in range(1000)]
        for client in clients:
            client.send(client.headers(1), frame(DATA, 0, 1, first))
        statuses = []
        for client in clients:
            client.send(*(frame(DATA, 0, 1, piece) for piece in rest), frame(DATA, END_STREAM, 1))
            statuses.append(client.read_answer(1).status)
        said = receiver.stop()

    assert set(statuses) <= {"0", "14"}
    assert statuses.count("0") > 500
    assert peak.above_idle_bytes < LIMIT_BYTES
    assert "internal" not in said
