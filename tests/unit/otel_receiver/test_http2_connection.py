"""One HTTP/2 connection without a socket: what is answered, what is held, and what a peer may not do (RFC 9113)."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable

import pytest

from rootwalk.otel_receiver.http2_connection import (
    MAX_CONCURRENT_STREAMS,
    PING_TIMEOUT_S,
    WINDOW_BYTES,
)
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
    Frame,
    frame,
    settings,
)
from support.http2_peer import UNRESERVED_BYTES, Echo, Peer

MAX_WINDOW_BYTES = 2**31 - 1


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(_as_coroutine(test), 20.0))


async def _as_coroutine(test: Callable[[], Awaitable[None]]) -> None:
    await test()


def kinds(frames: list[Frame]) -> list[int]:
    return [seen.kind for seen in frames]


def word(value: int) -> bytes:
    return struct.pack(">I", value)


def test_a_request_and_its_answer() -> None:
    async def test() -> None:
        peer = Peer()
        greeting = await peer.heard()
        answer = await peer.say(peer.headers(1), frame(DATA, END_STREAM, 1, b"body"))

        assert kinds(greeting) == [SETTINGS, WINDOW_UPDATE, SETTINGS]
        assert kinds(answer) == [HEADERS, DATA, HEADERS]
        assert [seen.stream for seen in answer] == [1, 1, 1]
        assert [seen.flags for seen in answer] == [END_HEADERS, 0, END_HEADERS | END_STREAM]
        assert answer[1].payload == b"hello"
        assert peer.application.bodies == [b"body"]
        assert peer.application.unreserved.held_bytes == 0

    run(test)


def test_the_same_bytes_mean_the_same_wherever_they_are_cut() -> None:
    async def said(size_bytes: int) -> list[Frame]:
        peer = Peer(opening=b"")
        sent = b"".join(
            (
                PREFACE,
                frame(SETTINGS),
                peer.headers(1),
                frame(DATA, 0, 1, b"a" * 300),
                frame(PING, payload=b"12345678"),
                frame(DATA, PADDED | END_STREAM, 1, b"\x05" + b"b" * 100 + bytes(5)),
                peer.request(3),
            )
        )
        for at in range(0, len(sent), size_bytes):
            peer.receive(sent[at : at + size_bytes])
        frames = await peer.heard()
        assert sorted(peer.application.bodies) == [b"", b"a" * 300 + b"b" * 100]
        return frames

    async def test() -> None:
        whole = await said(1_000_000)
        for size_bytes in (1, 2, 3, 7, 9, 10, 100, 333):
            cut = await said(size_bytes)
            assert sorted(kinds(cut)) == sorted(kinds(whole))

    run(test)


def test_a_header_block_in_many_frames_with_padding_and_priority() -> None:
    async def test() -> None:
        peer = Peer()
        block = peer.request(1)[9:]
        padded = b"\x02" + bytes(5) + block[:1] + bytes(2)
        answer = await peer.say(
            frame(HEADERS, PADDED | WITH_PRIORITY | END_STREAM, 1, padded),
            frame(CONTINUATION, 0, 1, block[1:2]),
            frame(CONTINUATION, END_HEADERS, 1, block[2:]),
        )

        assert DATA in kinds(answer)

    run(test)


def test_trailers_end_a_request() -> None:
    async def test() -> None:
        peer = Peer()
        trailers = frame(
            HEADERS, END_HEADERS | END_STREAM, 1, peer.encoder.encode([("checksum", "1")])
        )
        answer = await peer.say(peer.headers(1), frame(DATA, 0, 1, b"body"), trailers)

        assert DATA in kinds(answer)
        assert peer.application.bodies == [b"body"]

    run(test)


def test_the_peers_windows_are_respected() -> None:
    """An initial window of 2 lets 2 of 5 bytes go, and trailers only when all are sent."""

    async def test() -> None:
        peer = Peer()
        first = await peer.say(settings(_4=2), peer.request(1))
        second = await peer.say(frame(WINDOW_UPDATE, 0, 1, word(1)))
        third = await peer.say(settings(_4=4))

        assert [seen.payload for seen in first if seen.kind == DATA] == [b"he"]
        assert [(seen.kind, seen.payload) for seen in second] == [(DATA, b"l")]
        assert kinds(third) == [SETTINGS, DATA, HEADERS]

    run(test)


def test_the_peers_connection_window_is_respected() -> None:
    async def test() -> None:
        peer = Peer()
        requests = [peer.request(2 * n + 1) for n in range(14_000)]
        said = []
        # 65,535 bytes are 13,107 answers of 5.
        for at in range(0, len(requests), 500):
            said += await peer.say(*requests[at : at + 500])
        more = await peer.say(frame(WINDOW_UPDATE, 0, 0, word(100_000)))

        assert sum(len(seen.payload) for seen in said if seen.kind == DATA) == 65_535
        assert sum(len(seen.payload) for seen in more if seen.kind == DATA) == 14_000 * 5 - 65_535

    run(test)


def test_a_window_is_opened_for_exactly_what_was_admitted() -> None:
    async def test() -> None:
        peer = Peer()
        peer.application.may_answer.clear()
        await peer.say(peer.headers(1), frame(DATA, 0, 1, bytes(5)))
        stream = peer.application.streams[0]
        stream.admit(100_000)
        opened = await peer.heard()
        too_much = await peer.say(
            *[frame(DATA, 0, 1, bytes(16_384)) for _ in range(6)], frame(DATA, 0, 1, bytes(1_697))
        )

        # Of the first window, 65,530 bytes are left.
        assert [(seen.kind, seen.stream, seen.payload) for seen in opened] == [
            (WINDOW_UPDATE, 1, word(100_000 - 65_530))
        ]
        assert [(seen.kind, seen.code) for seen in too_much] == [
            (RST_STREAM, ErrorCode.FLOW_CONTROL_ERROR)
        ]

    run(test)


def test_the_connections_window_is_given_back() -> None:
    async def test() -> None:
        peer = Peer()
        await peer.heard()
        back = 0
        for number in range(1, 401, 2):
            frames = await peer.say(
                peer.headers(number),
                *[frame(DATA, 0, number, bytes(16_000)) for _ in range(4)],
                frame(DATA, END_STREAM, number),
            )
            back += sum(
                int.from_bytes(seen.payload, "big")
                for seen in frames
                if seen.kind == WINDOW_UPDATE and seen.stream == 0
            )
        sent = 200 * 4 * 16_000

        assert sent - WINDOW_BYTES < back <= sent

    run(test)


def test_what_nobody_reserved_is_limited_over_all_connections() -> None:
    async def test() -> None:
        application = Echo()
        peers = [Peer(application) for _ in range(30)]
        for peer in peers:
            peer.receive(peer.headers(1))
            peer.receive(b"".join(frame(DATA, 0, 1, bytes(16_000)) for _ in range(4)))
            assert application.unreserved.held_bytes <= UNRESERVED_BYTES

        crowded_out = [stream for stream in application.streams if stream.is_crowded_out]
        for peer in peers:
            peer.connection.connection_lost(None)

        # 15 streams of 64,000 bytes and their own cost fill a MiB.
        assert len(crowded_out) == 15
        assert application.unreserved.held_bytes == 0

    run(test)


def test_an_answer_before_the_end_of_a_request_resets_it_without_blame() -> None:
    async def test() -> None:
        peer = Peer()
        await peer.say(peer.headers(1))
        peer.application.streams[0].respond(peer.application.answer)
        answer = await peer.heard()
        late = await peer.say(frame(DATA, 0, 1, b"late"), frame(DATA, END_STREAM, 1, b"r"))

        assert kinds(answer) == [HEADERS, DATA, HEADERS, RST_STREAM]
        assert answer[-1].code == ErrorCode.NO_ERROR
        assert late == []

    run(test)


def test_a_reset_ends_the_work_unless_it_is_taken() -> None:
    async def test() -> None:
        peer = Peer()
        peer.application.may_answer.clear()
        await peer.say(peer.headers(1), peer.request(3))
        reading, taken = peer.application.streams
        said = await peer.say(
            frame(RST_STREAM, 0, 1, word(ErrorCode.CANCEL)),
            frame(RST_STREAM, 0, 3, word(ErrorCode.CANCEL)),
        )
        orphans = peer.connection.orphans
        peer.application.may_answer.set()
        said += await peer.heard()

        assert reading.task is not None
        assert reading.task.cancelled()
        assert taken.task is not None
        assert taken.task.done()
        assert not taken.task.cancelled()
        assert (orphans, peer.connection.orphans) == (1, 0)
        assert said == []

    run(test)


def test_streams_beyond_the_limit_are_refused_those_without_a_sender_included() -> None:
    async def test() -> None:
        application = Echo()
        application.may_answer.clear()
        peer = Peer(application)
        numbers = range(1, 2 * MAX_CONCURRENT_STREAMS, 2)
        for number in numbers:
            peer.receive(peer.request(number))
        await peer.heard()
        for number in numbers[:100]:
            peer.receive(frame(RST_STREAM, 0, number, word(ErrorCode.CANCEL)))
        refused = await peer.say(peer.request(numbers[-1] + 2))

        assert [(seen.kind, seen.code) for seen in refused] == [
            (RST_STREAM, ErrorCode.REFUSED_STREAM)
        ]

    run(test)


def test_a_peer_that_does_not_read_is_not_read() -> None:
    async def test() -> None:
        peer = Peer()
        peer.connection.pause_writing()
        was_paused = peer.transport.is_reading_paused
        peer.connection.resume_writing()

        assert (was_paused, peer.transport.is_reading_paused) == (True, False)

    run(test)


def test_leaving_answers_what_is_in_progress_and_nothing_new() -> None:
    async def test() -> None:
        peer = Peer()
        peer.application.may_answer.clear()
        await peer.say(peer.request(1))
        peer.connection.leave()
        peer.application.may_answer.set()
        said = await peer.say(peer.request(3))

        goaway = next(seen for seen in said if seen.kind == GOAWAY)
        assert (goaway.payload[:4], goaway.code) == (word(1), ErrorCode.NO_ERROR)
        assert {seen.stream for seen in said if seen.kind == HEADERS} == {1}

    run(test)


def test_pings_and_settings_are_answered() -> None:
    async def test() -> None:
        peer = Peer()
        await peer.heard()
        said = await peer.say(
            frame(PING, payload=b"abcdefgh"),
            settings(_1=0, _3=7, _99=1),
            frame(SETTINGS, ACK),
            frame(99, 7, 0, b"unknown"),
            frame(PRIORITY, 0, 5, bytes(5)),
            frame(GOAWAY, 0, 0, bytes(8)),
        )

        assert [(seen.kind, seen.flags, seen.payload) for seen in said] == [
            (PING, ACK, b"abcdefgh"),
            (SETTINGS, ACK, b""),
        ]

    run(test)


def test_a_silent_peer_is_asked_and_then_left() -> None:
    async def test() -> None:
        peer = Peer()
        await peer.heard()
        now_s = asyncio.get_running_loop().time()
        keepalive_s = peer.application.keepalive_s
        peer.connection.check_time(now_s + keepalive_s / 2)
        early = await peer.heard()
        peer.connection.check_time(now_s + keepalive_s + 1)
        peer.connection.check_time(now_s + keepalive_s + 2)
        asked = await peer.heard()
        was_closed = peer.transport.is_closed
        peer.connection.check_time(now_s + keepalive_s + 2 + PING_TIMEOUT_S)

        assert (early, kinds(asked), was_closed) == ([], [PING], False)
        assert peer.transport.is_closed

    run(test)


@pytest.mark.parametrize("part", [b"", PREFACE[:5], PREFACE + frame(SETTINGS) + b"\0\0"])
def test_what_is_begun_has_to_end_in_time(part: bytes) -> None:
    async def test() -> None:
        peer = Peer(opening=part)
        now_s = asyncio.get_running_loop().time()
        peer.connection.check_time(now_s + peer.application.read_timeout_s / 2)
        was_closed = peer.transport.is_closed
        peer.connection.check_time(now_s + peer.application.read_timeout_s + 1)

        assert (was_closed, peer.transport.is_closed) == (False, True)

    run(test)


def test_an_http1_client_is_told_so() -> None:
    async def test() -> None:
        peer = Peer(opening=b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

        assert bytes(peer.transport.written) == b"HTTP/1.1 400 Bad Request\r\n\r\n"
        assert peer.transport.is_closed
        assert peer.application.broken == 0

    run(test)


def _block(peer: Peer, number: int) -> bytes:
    return peer.request(number)[9:]


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


def test_good_clients_may_ping_as_long_as_they_send() -> None:
    async def test() -> None:
        peer = Peer()
        for number in range(1, 2 * MAX_IDLE_FRAMES, 2):
            await peer.say(peer.request(number), frame(PING, payload=bytes(8)) * 3)

        assert not peer.transport.is_closed

    run(test)


def _mutated(chance: random.Random, peer: Peer, number: int) -> bytes:
    whole = peer.headers(number) + frame(DATA, END_STREAM, number, chance.randbytes(50))
    match chance.randrange(20):
        case 1:
            return frame(
                chance.randrange(12),
                chance.randrange(256),
                chance.choice((0, 1, number, number + 2, 2**31 - 1)),
                chance.randbytes(chance.choice((0, 1, 4, 5, 6, 8, 40))),
            )
        case 2:
            at = chance.randrange(len(whole))
            return whole[:at] + chance.randbytes(3) + whole[at + 3 :]
        case 3:
            return settings(**{f"_{chance.randrange(8)}": chance.randrange(2**32)})
        case 4:
            return peer.headers(number) + frame(RST_STREAM, 0, number, chance.randbytes(4))
        case 5:
            return frame(WINDOW_UPDATE, 0, chance.choice((0, number)), chance.randbytes(4))
        case _:
            return whole


def test_nothing_that_is_sent_breaks_it() -> None:
    """Random and mutated frames, cut anywhere: no exception but the protocol's, nothing held at the end."""

    async def test() -> None:
        chance = random.Random(1)  # noqa: S311 -- to be repeated, not to be secret
        application = Echo()
        for _ in range(400):
            peer = Peer(application)
            for number in range(1, 61, 2):
                data = _mutated(chance, peer, number)
                at = chance.randrange(len(data) + 1)
                peer.receive(data[:at])
                if chance.random() < 0.2:
                    await peer.heard()
                peer.receive(data[at:])
                if peer.transport.is_closed:
                    break
            await peer.heard()
            assert application.unreserved.held_bytes <= UNRESERVED_BYTES
            peer.connection.connection_lost(None)
            await asyncio.sleep(0)
        await asyncio.gather(
            *(s.task for s in application.streams if s.task), return_exceptions=True
        )
        assert application.unreserved.held_bytes == 0
        assert application.broken > 100
        assert len(application.bodies) > 1000

    run(test)
