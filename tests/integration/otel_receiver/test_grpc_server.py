"""gRPC calls as clients may make them, good and bad, frame by frame over a real socket: what is answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from rootwalk.otel_receiver.grpc_calls import GRPC_ENCODINGS
from rootwalk.otel_receiver.store import query_store
from support.compressions import COMPRESSIONS
from support.http2_client import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Client,
    ask,
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
from support.otlp_paths import LOG_EXPORT, METRIC_EXPORT, PROFILE_EXPORT, TRACE_EXPORT
from support.receiver_process import ReceiverProcess, running_receiver

HEALTH = "/grpc.health.v1.Health/Check"


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReceiverProcess]:
    with running_receiver(tmp_path_factory.mktemp("grpc") / "s.duckdb") as running:
        yield running


# The Collector's client frames what it calls snappy, others do not.
@pytest.mark.parametrize("encoding", [*GRPC_ENCODINGS, "x-snappy-framed"])
def test_every_encoding_brings_every_signal(encoding: str, tmp_path: Path) -> None:
    bodies = {
        TRACE_EXPORT: trace_request([span(1, encoding)]),
        METRIC_EXPORT: metric_request([metric(encoding, gauge={"data_points": [{"as_int": 1}]})]),
        LOG_EXPORT: log_request([encoding]),
        PROFILE_EXPORT: profile_request([[{"stack_index": 1, "values": [7]}]]),
    }
    name = encoding.removeprefix("x-").removesuffix("-framed")
    with (
        running_receiver(tmp_path / "s.duckdb") as receiver,
        Http2Client(receiver.grpc) as client,
    ):
        for number, (path, body) in enumerate(bodies.items()):
            fields = grpc_fields(path, grpc_encoding=name)
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
    answer = ask(receiver.grpc, body, **more)

    assert answer.fields[":status"] == "200"
    assert answer.fields["content-type"] == "application/grpc"
    assert answer.status == status
    assert saw in answer.fields["grpc-message"]
    assert (answer.body, answer.fields.get("grpc-status-details-bin")) == (b"", None)


def test_an_unknown_encoding_is_told_the_known_ones(receiver: ReceiverProcess) -> None:
    answer = ask(receiver.grpc, message(b""), grpc_encoding="br")

    assert answer.fields["grpc-accept-encoding"] == "identity,gzip,deflate,snappy,zstd"


def test_messages_are_percent_encoded(receiver: ReceiverProcess) -> None:
    answer = ask(receiver.grpc, message(b""), path="/100%/ü\n")

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

    assert ask(receiver.grpc, body, path=HEALTH).body == message(b"\x08\x01")


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


def test_the_window_is_opened_as_the_message_comes(receiver: ReceiverProcess) -> None:
    """Not for what is announced: a peer that sends nothing gets nothing, one that sends waits a few times."""
    body = message(trace_request([span(1, attributes={"x": "y" * 1_000_000})]))
    opened: list[int] = []
    with Http2Client(receiver.grpc) as client:
        client.send(client.headers(1), frame(DATA, 0, 1, body[:5]))
        sent, window = 5, 65_535 - 5
        while sent < len(body):
            part = body[sent : sent + min(window, 16_384)]
            if part:
                client.send(frame(DATA, 0, 1, part))
                sent, window = sent + len(part), window - len(part)
                continue
            update = client.read_until(WINDOW_UPDATE)
            if update.stream == 1:
                opened.append(int.from_bytes(update.payload, "big"))
                window += opened[-1]
        client.send(frame(DATA, END_STREAM, 1))
        answer = client.read_answer(1)

    assert 0 < opened[0] < len(body) // 2
    assert len(opened) <= 3
    assert answer.status == "0"


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
