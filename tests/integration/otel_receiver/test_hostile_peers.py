"""One unauthenticated peer beside a good client: the client's requests are all taken, memory and log stay small."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from rootwalk.otel_receiver.store import query_store
from support.http2_client import DATA, END_STREAM, SETTINGS, Http2Client, frame, message
from support.otlp_messages import span, trace_request
from support.otlp_paths import TRACE_EXPORT
from support.peak_memory import PeakMemory
from support.receiver_process import ReceiverProcess, running_receiver

MIB = 1024 * 1024
LIMIT_BYTES = 256 * MIB
LIMIT = ("--max-memory-bytes", "256MiB", "--telemetry-interval", "0")
ATTACK_S = 4.0
MAX_LOG_BYTES = 20_000


def _open(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=5)


def _idle_sockets(receiver: ReceiverProcess, stack: contextlib.ExitStack) -> None:
    for number in range(400):
        with contextlib.suppress(OSError):
            address = receiver.http if number % 2 else receiver.grpc
            stack.enter_context(contextlib.closing(_open(address)))


def _announced_bodies(receiver: ReceiverProcess, stack: contextlib.ExitStack) -> None:
    prefix = b"\0" + (60 * MIB).to_bytes(4, "big")
    for _ in range(4):
        client = stack.enter_context(Http2Client(receiver.grpc))
        for number in range(1, 80, 2):
            client.send(client.headers(number), frame(DATA, 0, number, prefix))
    for _ in range(20):
        http = stack.enter_context(contextlib.closing(_open(receiver.http)))
        http.sendall(
            b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
            b"Content-Length: 62914560\r\n\r\n"
        )


def _open_streams(receiver: ReceiverProcess, stack: contextlib.ExitStack) -> None:
    for _ in range(20):
        client = stack.enter_context(Http2Client(receiver.grpc))
        with contextlib.suppress(OSError):
            client.send(b"".join(client.headers(number) for number in range(1, 2048, 2)))


def _zero_windows(receiver: ReceiverProcess, stack: contextlib.ExitStack) -> None:
    no_window = frame(SETTINGS, 0, 0, (4).to_bytes(2, "big") + bytes(4))
    for _ in range(20):
        client = stack.enter_context(Http2Client(receiver.grpc))
        body = message(trace_request([]))
        with contextlib.suppress(OSError):
            client.send(no_window)
            for number in range(1, 2048, 2):
                client.send(client.headers(number), frame(DATA, END_STREAM, number, body))


def _malformed_http(receiver: ReceiverProcess, _stack: contextlib.ExitStack) -> None:
    end_s = time.monotonic() + ATTACK_S / 2
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError), contextlib.closing(_open(receiver.http)) as http:
            http.sendall(b"GET \x01 HTTP/9.9\r\n\r\n" * 20)
            http.recv(4096)


ATTACKS: tuple[Callable[[ReceiverProcess, contextlib.ExitStack], None], ...] = (
    _idle_sockets,
    _announced_bodies,
    _open_streams,
    _zero_windows,
    _malformed_http,
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_good_client_has_all_its_requests_taken(
    tmp_path: Path, attack: Callable[[ReceiverProcess, contextlib.ExitStack], None]
) -> None:
    sent = 0
    answers: list[str] = []
    with running_receiver(tmp_path / "s.duckdb", *LIMIT) as receiver:
        resource.prlimit(receiver.process.pid, resource.RLIMIT_NOFILE, (200, 200))
        with contextlib.ExitStack() as stack, PeakMemory(receiver.process.pid) as peak:
            channel = stack.enter_context(grpc.insecure_channel(receiver.grpc))
            export = channel.unary_unary(TRACE_EXPORT)
            export(trace_request([span(1)]), timeout=60)
            attacker = threading.Thread(target=attack, args=(receiver, stack))
            attacker.start()
            end_s = time.monotonic() + ATTACK_S
            while time.monotonic() < end_s or attacker.is_alive():
                sent += 1
                try:
                    export(trace_request([span(sent + 1)]), timeout=60)
                except grpc.RpcError as error:
                    answers.append(f"{error.code()} {error.details()}")
            attacker.join()
        said = receiver.stop()

    assert answers == []
    assert query_store(receiver.store, "SELECT count(*) FROM spans")[2] == [(sent + 1,)]
    assert peak.above_idle_bytes < LIMIT_BYTES
    assert len(said) < MAX_LOG_BYTES, said[-2000:]
