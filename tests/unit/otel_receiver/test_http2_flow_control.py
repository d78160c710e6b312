"""Flow control of HTTP/2: how much either end may send, and when it may send more (RFC 9113, section 5.2)."""

from __future__ import annotations

from rootwalk.otel_receiver.http2_connection import WINDOW_BYTES
from rootwalk.otel_receiver.http2_frames import ErrorCode
from support.http2_client import (
    DATA,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    settings,
    word,
)
from support.http2_peer import Peer, kinds, run


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


def test_a_peer_that_does_not_read_is_not_read() -> None:
    async def test() -> None:
        peer = Peer()
        peer.connection.pause_writing()
        was_paused = peer.transport.is_reading_paused
        peer.connection.resume_writing()

        assert (was_paused, peer.transport.is_reading_paused) == (True, False)

    run(test)
