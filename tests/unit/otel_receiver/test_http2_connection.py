"""One HTTP/2 connection without a socket: what is asked and answered, and how it ends well (RFC 9113)."""

from __future__ import annotations

from rootwalk.otel_receiver.http2_frames import ErrorCode
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
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Frame,
    frame,
    settings,
    word,
)
from support.http2_peer import Peer, kinds, run


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


def test_an_http1_client_is_told_so() -> None:
    async def test() -> None:
        peer = Peer(opening=b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

        assert bytes(peer.transport.written) == b"HTTP/1.1 400 Bad Request\r\n\r\n"
        assert peer.transport.is_closed
        assert peer.application.broken == 0

    run(test)
