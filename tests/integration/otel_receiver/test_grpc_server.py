"""gRPC as clients may speak it, good and bad, frame by frame over a real socket."""

from __future__ import annotations

import base64
import contextlib
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import requests
from google.rpc.status_pb2 import Status

from rootwalk.otel_receiver.grpc_calls import GRPC_ENCODINGS
from rootwalk.otel_receiver.store import query_store
from support.certificates import issue_certificates
from support.compressions import COMPRESSIONS
from support.http2_client import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    TRACE_EXPORT,
    WINDOW_UPDATE,
    Answer,
    Http2Client,
    frame,
    grpc_fields,
    message,
    settings,
)
from support.otlp_messages import (
    log_request,
    metric,
    metric_request,
    profile_request,
    span,
    trace_request,
)
from support.peak_memory import PeakMemory
from support.receiver_process import ReceiverProcess, running_receiver

SERVICE = "/opentelemetry.proto.collector"
HEALTH = "/grpc.health.v1.Health/Check"
MIB = 1024 * 1024
LIMIT_BYTES = 256 * MIB


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReceiverProcess]:
    with running_receiver(tmp_path_factory.mktemp("grpc") / "s.duckdb") as running:
        yield running


def _ask(receiver: ReceiverProcess, body: bytes, **more: str) -> Answer:
    """The answer to an export of spans whose DATA is `body`."""
    with Http2Client(receiver.grpc) as client:
        client.send(client.headers(1, grpc_fields(**more)), frame(DATA, END_STREAM, 1, body))
        return client.read_answer(1)


# The Collector's client frames what it calls snappy, others do not.
@pytest.mark.parametrize("encoding", [*GRPC_ENCODINGS, "x-snappy-framed"])
def test_every_encoding_brings_every_signal(encoding: str, tmp_path: Path) -> None:
    bodies = {
        "trace.v1.TraceService": trace_request([span(1, encoding)]),
        "metrics.v1.MetricsService": metric_request(
            [metric(encoding, gauge={"data_points": [{"as_int": 1}]})]
        ),
        "logs.v1.LogsService": log_request([encoding]),
        "profiles.v1development.ProfilesService": profile_request(
            [[{"stack_index": 1, "values": [7]}]]
        ),
    }
    name = encoding.removeprefix("x-").removesuffix("-framed")
    with (
        running_receiver(tmp_path / "s.duckdb") as receiver,
        Http2Client(receiver.grpc) as client,
    ):
        for number, (service, body) in enumerate(bodies.items()):
            fields = grpc_fields(f"{SERVICE}.{service}/Export", grpc_encoding=name)
            sent = message(COMPRESSIONS[encoding](body), flag=int(name != "identity"))
            # The second time not compressed, which the same header field allows.
            for stream, data in ((4 * number + 1, sent), (4 * number + 3, message(body))):
                client.send(client.headers(stream, fields), frame(DATA, END_STREAM, stream, data))
                answer = client.read_answer(stream)
                assert (answer.status, answer.body) == ("0", message(b"")), answer
        receiver.stop()

    for query in (
        "SELECT count(*) FROM metrics WHERE service_name = 'rootwalk'",
        "SELECT count(*) FROM logs",
        "SELECT count(*) FROM profile_samples",
    ):
        assert query_store(receiver.store, query)[2] == [(2,)], query
    assert query_store(receiver.store, "SELECT name FROM spans")[2] == [(encoding,)]


@pytest.mark.parametrize(
    ("body", "more", "status", "saw"),
    [
        (b"", {}, "3", "saw no message; needs one"),
        (b"\0\0", {}, "3", "saw its end before 5 bytes"),
        (message(b"x" * 10)[:-1], {}, "3", "saw its end before 10 bytes"),
        (message(b"") + message(b""), {}, "3", "saw more than one message"),
        (message(b"") + b"x", {}, "3", "saw more than one message"),
        (message(b"", flag=1), {}, "13", "saw flag 1 with the encoding"),
        (message(b"", flag=2), {"grpc_encoding": "gzip"}, "13", "saw flag 2"),
        (message(b"no", flag=1), {"grpc_encoding": "zstd"}, "3", "cannot decompress the body"),
        (message(b""), {"grpc_encoding": "br"}, "12", "cannot read the encoding"),
        (b"\0\xff\xff\xff\xff", {}, "8", "saw more than 67108864 bytes"),
        (message(b""), {"path": "/a.B/C"}, "12", "cannot find the method"),
        (message(b""), {"path": f"{HEALTH[:-5]}Watch"}, "12", "cannot find the method"),
        (message(b"\x0a\x01x"), {"path": HEALTH}, "5", "cannot tell the health"),
        (message(b"") * 2000, {"padding": "x" * 17_000}, "8", "cannot read the request's metadata"),
    ],
)
def test_refusals(
    receiver: ReceiverProcess, body: bytes, more: dict[str, str], status: str, saw: str
) -> None:
    answer = _ask(receiver, body, **more)

    assert answer.fields[":status"] == "200"
    assert answer.fields["content-type"] == "application/grpc"
    assert answer.status == status
    assert saw in answer.fields["grpc-message"]
    assert (answer.body, answer.fields.get("grpc-status-details-bin")) == (b"", None)


def test_an_unknown_encoding_is_told_the_known_ones(receiver: ReceiverProcess) -> None:
    answer = _ask(receiver, message(b""), grpc_encoding="br")

    assert answer.fields["grpc-accept-encoding"] == "identity,gzip,deflate,snappy,zstd"


def test_messages_are_percent_encoded(receiver: ReceiverProcess) -> None:
    answer = _ask(receiver, message(b""), path="/100%/ü\n")

    assert '"/100%25/%C3%BC%0A"' in answer.fields["grpc-message"]


@pytest.mark.parametrize(
    ("name", "value", "http_status"),
    [
        ("content-type", "application/json", "415"),
        ("content-type", "application/grpc-web", "415"),
        ("content-type", "application/grpc+json", "415"),
        (":method", "GET", "405"),
    ],
)
def test_what_is_no_grpc(
    receiver: ReceiverProcess, name: str, value: str, http_status: str
) -> None:
    fields = [(n, value if n == name else v) for n, v in grpc_fields()]
    with Http2Client(receiver.grpc) as client:
        client.send(client.headers(1, fields, END_HEADERS | END_STREAM))
        answer = client.read_answer(1)

    assert answer.fields[":status"] == http_status
    assert answer.status is None


@pytest.mark.parametrize("service", ["", "opentelemetry.proto.collector.logs.v1.LogsService"])
def test_health(receiver: ReceiverProcess, service: str) -> None:
    text = service.encode()
    body = message(b"\x0a" + bytes((len(text),)) + text if text else b"")

    assert _ask(receiver, body, path=HEALTH).body == message(b"\x08\x01")


def test_an_http1_client_is_told_where_it_is(receiver: ReceiverProcess) -> None:
    response = requests.post(f"http://{receiver.grpc}/v1/traces", b"x", timeout=30)

    assert response.status_code == 400
    assert "this port speaks OTLP over gRPC" in response.text


def test_a_message_comes_in_pieces_of_any_size(receiver: ReceiverProcess) -> None:
    body = message(trace_request([span(1, "pieces")]))
    with Http2Client(receiver.grpc) as client:
        client.send(client.headers(1))
        for at in range(len(body)):
            client.send(frame(DATA, 0, 1, body[at : at + 1]))
        client.send(frame(DATA, END_STREAM, 1))
        answer = client.read_answer(1)

    assert answer.status == "0"


def test_a_second_message_is_refused_however_it_comes(receiver: ReceiverProcess) -> None:
    body = message(trace_request([span(1, "x" * 1000)]))
    with Http2Client(receiver.grpc) as client:
        for stream, sizes in ((1, (100, 2000, 10_000)), (3, (5, len(body), 1)), (5, (2500,))):
            client.send(client.headers(stream))
            at = 0
            for size in sizes:
                client.send(frame(DATA, 0, stream, (body * 10)[at : at + size]))
                at += size
                client.send(frame(PING, payload=bytes(8)))
                client.read_until(PING)
        client.send(frame(DATA, END_STREAM, 3))
        answers = client.read_answers(1, 3, 5)

    assert {answer.status for answer in answers.values()} == {"3"}
    assert {"more than one message" in a.fields["grpc-message"] for a in answers.values()} == {True}


def test_the_window_is_opened_for_the_whole_message_at_once(receiver: ReceiverProcess) -> None:
    body = message(trace_request([span(1, attributes={"x": "y" * 1_000_000})]))
    with Http2Client(receiver.grpc) as client:
        client.send(client.headers(1), *(frame(DATA, 0, 1, body[at : at + 5]) for at in (0, 5)))
        update = client.read_until(WINDOW_UPDATE)
        while update.stream == 0:
            update = client.read_until(WINDOW_UPDATE)
        pieces = [body[at : at + 16_384] for at in range(10, len(body), 16_384)]
        client.send(*(frame(DATA, 0, 1, piece) for piece in pieces), frame(DATA, END_STREAM, 1))
        answer = client.read_answer(1)

    assert int.from_bytes(update.payload, "big") == len(body) - 65_535
    assert answer.status == "0"


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
                    answer = _ask(receiver, message(b""))
                    assert answer.status == "0"
            last = client.read_until(GOAWAY)
        assert _ask(receiver, body).status == "0"
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
        assert _ask(receiver, message(b"")).status == "0"

    assert peak.above_idle_bytes < 64 * MIB


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


def test_many_streams_of_one_client_are_answered_each_by_itself(receiver: ReceiverProcess) -> None:
    numbers = range(1, 1001, 2)
    with Http2Client(receiver.grpc, opening=PREFACE + settings(_4=1)) as client:
        sender = threading.Thread(
            target=client.send,
            args=[client.request(number) for number in numbers],
        )
        sender.start()
        # Windows of one byte are opened byte by byte.
        waiting = dict.fromkeys(numbers, 0)
        deadline_s = time.monotonic() + 30
        while waiting:
            assert time.monotonic() < deadline_s
            seen = client.read_frame()
            assert seen is not None
            if seen.kind == DATA:
                waiting[seen.stream] += len(seen.payload)
                client.send(frame(WINDOW_UPDATE, 0, seen.stream, (1).to_bytes(4, "big")))
            elif seen.kind == HEADERS and seen.flags & END_STREAM:
                assert waiting.pop(seen.stream) == 5
            else:
                assert seen.kind in (SETTINGS, HEADERS, WINDOW_UPDATE)
        sender.join()
