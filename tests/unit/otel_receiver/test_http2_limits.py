"""What a peer may cost: streams, memory and time of an HTTP/2 connection; and frames mutated at random."""

from __future__ import annotations

import asyncio
import random

import pytest

from rootwalk.otel_receiver.http2_connection import MAX_CONCURRENT_STREAMS, PING_TIMEOUT_S
from rootwalk.otel_receiver.http2_frames import ErrorCode
from rootwalk.otel_receiver.http2_limits import MAX_IDLE_FRAMES
from support.http2_client import (
    DATA,
    END_STREAM,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    settings,
    word,
)
from support.http2_peer import UNRESERVED_BYTES, Echo, Peer, kinds, run


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

        # 13 streams of 64,000 bytes and their own cost fill what is not kept of a MiB for those that hold little.
        assert len(crowded_out) == 17
        assert application.unreserved.held_bytes == 0

    run(test)


def test_good_clients_may_ping_as_long_as_they_send() -> None:
    async def test() -> None:
        peer = Peer()
        for number in range(1, 2 * MAX_IDLE_FRAMES, 2):
            await peer.say(peer.request(number), frame(PING, payload=bytes(8)) * 3)

        assert not peer.transport.is_closed

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
