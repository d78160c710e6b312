"""What a peer may not do, and whether it ends an HTTP/2 connection or only a stream (RFC 9113)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rootwalk.otel_receiver.http2_frames import ErrorCode
from rootwalk.otel_receiver.http2_limits import MAX_IDLE_FRAMES
from rootwalk.otel_receiver.http2_reader import MAX_CONTINUATIONS
from support.http2_client import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    frame,
    settings,
    word,
)
from support.http2_peer import Peer, kinds, run

MAX_WINDOW_BYTES = 2**31 - 1
# What a peer sends, and the error that ends the connection.
BREAKS_CONNECTION: dict[str, tuple[Callable[[Peer], bytes], ErrorCode]] = {
    "a large frame": (lambda _: frame(DATA, 0, 1, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR),
    "an even stream": (lambda p: p.request(2), ErrorCode.PROTOCOL_ERROR),
    "stream 0": (lambda p: p.request(0), ErrorCode.PROTOCOL_ERROR),
    "an earlier stream": (lambda p: p.request(5) + p.request(3), ErrorCode.PROTOCOL_ERROR),
    "DATA of no stream": (lambda _: frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "DATA of an idle stream": (lambda _: frame(DATA, 0, 7, b"x"), ErrorCode.PROTOCOL_ERROR),
    "a reset of an idle stream": (
        lambda _: frame(RST_STREAM, 0, 7, word(8)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a window of an idle stream": (
        lambda _: frame(WINDOW_UPDATE, 0, 7, word(8)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a window of 0": (lambda _: frame(WINDOW_UPDATE, 0, 0, word(0)), ErrorCode.PROTOCOL_ERROR),
    "a window too large": (
        lambda _: frame(WINDOW_UPDATE, 0, 0, word(MAX_WINDOW_BYTES)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a setting of a window too large": (
        lambda _: settings(_4=2**31),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a setting of push": (lambda _: settings(_2=2), ErrorCode.PROTOCOL_ERROR),
    "a setting of small frames": (lambda _: settings(_5=100), ErrorCode.PROTOCOL_ERROR),
    "settings cut short": (
        lambda _: frame(SETTINGS, payload=b"12345"),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "settings of a stream": (lambda _: frame(SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "an answer with settings": (
        lambda _: frame(SETTINGS, ACK, 0, bytes(6)),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "a short ping": (lambda _: frame(PING, payload=b"1"), ErrorCode.FRAME_SIZE_ERROR),
    "a ping of a stream": (lambda _: frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "a push": (lambda _: frame(PUSH_PROMISE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "a short priority": (lambda _: frame(PRIORITY, 0, 1, b"1"), ErrorCode.FRAME_SIZE_ERROR),
    "a priority of no stream": (
        lambda _: frame(PRIORITY, 0, 0, bytes(5)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "padding without end": (
        lambda p: p.headers(1) + frame(DATA, PADDED, 1, b"\x05abcd"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "no padding at all": (
        lambda p: p.headers(1) + frame(DATA, PADDED, 1),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a frame within a header block": (
        lambda p: p.headers(1, flags=0) + frame(PING, payload=bytes(8)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a header block of two streams": (
        lambda p: p.headers(1, flags=0) + frame(CONTINUATION, END_HEADERS, 3),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a continuation of nothing": (
        lambda _: frame(CONTINUATION, END_HEADERS, 1),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "continuations without end": (
        lambda p: p.headers(1, flags=0) + frame(CONTINUATION, 0, 1) * (MAX_CONTINUATIONS + 1),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "a header block without end": (
        lambda p: p.headers(1, flags=0) + frame(CONTINUATION, 0, 1, bytes(16_384)),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "headers cut short": (
        lambda _: frame(HEADERS, WITH_PRIORITY | END_HEADERS, 1, b"123"),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "a block that is none": (
        lambda _: frame(HEADERS, END_HEADERS, 1, b"\x80"),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "headers of an ended stream": (
        lambda p: p.request(1) + frame(RST_STREAM, 0, 1, word(8)) + p.request(1),
        ErrorCode.STREAM_CLOSED,
    ),
    "pings without end": (
        lambda _: frame(PING, payload=bytes(8)) * (MAX_IDLE_FRAMES + 1),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "settings without end": (
        lambda _: frame(SETTINGS) * (MAX_IDLE_FRAMES + 1),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "empty DATA without end": (
        lambda p: p.headers(1) + frame(DATA, 0, 1) * (MAX_IDLE_FRAMES + 1),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "resets without end": (
        lambda p: b"".join(
            p.headers(number) + frame(RST_STREAM, 0, number, word(8))
            for number in range(1, MAX_IDLE_FRAMES, 2)
        ),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize("name", BREAKS_CONNECTION)
def test_what_ends_a_connection(name: str) -> None:
    async def test() -> None:
        send, code = BREAKS_CONNECTION[name]
        peer = Peer()
        said = await peer.say(send(peer))

        assert [(seen.kind, ErrorCode(seen.code)) for seen in said[-1:]] == [(GOAWAY, code)]
        assert peer.transport.is_closed
        assert peer.application.broken == 1
        # What comes after it is not looked at.
        assert await peer.say(frame(PING, payload=bytes(8))) == []

    run(test)


@pytest.mark.parametrize(
    ("opening", "code"),
    [
        (b"X" * 24, ErrorCode.PROTOCOL_ERROR),
        (PREFACE + frame(PING, payload=bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (PREFACE + frame(SETTINGS, ACK), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_openings_that_are_none(opening: bytes, code: ErrorCode) -> None:
    async def test() -> None:
        peer = Peer(opening=opening)
        said = await peer.heard()

        assert (said[-1].kind, said[-1].code) == (GOAWAY, code)
        assert peer.transport.is_closed

    run(test)


BREAKS_STREAM: dict[str, tuple[Callable[[Peer], bytes], ErrorCode]] = {
    "no method": (
        lambda p: frame(HEADERS, END_HEADERS, 1, p.encoder.encode([("a", "b")])),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "another size than announced": (
        lambda p: p.headers(1, ("content-length", "3")) + frame(DATA, END_STREAM, 1, b"four"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "an announced size and nothing": (
        lambda p: p.headers(1, ("content-length", "3"), flags=END_HEADERS | END_STREAM),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a window of 0": (
        lambda p: p.headers(1) + frame(WINDOW_UPDATE, 0, 1, word(0)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a window too large": (
        lambda p: p.headers(1) + frame(WINDOW_UPDATE, 0, 1, word(MAX_WINDOW_BYTES)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "more than the window": (
        lambda p: p.headers(1) + frame(DATA, 0, 1, bytes(16_384)) * 4,
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "headers in mid-stream": (lambda p: p.headers(1) + p.headers(1), ErrorCode.PROTOCOL_ERROR),
    "pseudo fields at the end": (
        lambda p: p.headers(1) + p.request(1),
        ErrorCode.PROTOCOL_ERROR,
    ),
}


@pytest.mark.parametrize("name", BREAKS_STREAM)
def test_what_ends_a_stream_and_no_more(name: str) -> None:
    async def test() -> None:
        send, code = BREAKS_STREAM[name]
        peer = Peer()
        said = await peer.say(send(peer))
        after = await peer.say(peer.request(9))

        assert [(seen.kind, seen.stream, ErrorCode(seen.code)) for seen in said[-1:]] == [
            (RST_STREAM, 1, code)
        ]
        assert kinds(after) == [HEADERS, DATA, HEADERS]
        assert peer.application.unreserved.held_bytes == 0

    run(test)


def test_data_after_the_end_of_a_request() -> None:
    async def test() -> None:
        peer = Peer()
        peer.application.may_answer.clear()
        said = await peer.say(peer.request(1), frame(DATA, 0, 1, b"more"))

        assert (said[-1].kind, said[-1].code) == (RST_STREAM, ErrorCode.STREAM_CLOSED)

    run(test)
