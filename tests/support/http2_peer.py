"""A connection of the HTTP/2 server without a socket: what is sent to it, what it says, and a small application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import hpack

from rootwalk.otel_receiver.header_blocks import encode_fields
from rootwalk.otel_receiver.http2_connection import READ_BYTES, Http2Connection
from rootwalk.otel_receiver.http2_frames import Response, build_response
from rootwalk.otel_receiver.http2_limits import UnreservedMemory
from rootwalk.otel_receiver.http2_roles import Connection
from rootwalk.otel_receiver.http2_stream import Stream
from support.http2_client import END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, Frame, frame

Head = Mapping[bytes, bytes] | None
ANSWER = build_response(
    encode_fields([(b":status", b"200")]), b"hello", encode_fields([(b"x", b"")])
)
UNRESERVED_BYTES = 1024 * 1024
TIMEOUT_S = 20.0


class MemoryTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False
        self.is_reading_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False


class Echo:
    """An application that reads whole bodies and says hello."""

    def __init__(self, answer: Response = ANSWER) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.unreserved = UnreservedMemory(UNRESERVED_BYTES)
        self.keepalive_s = 100.0
        self.read_timeout_s = 10.0
        self.answer = answer
        self.broken = 0
        self.bodies: list[bytes] = []
        self.streams: list[Stream[Head]] = []
        self.connections: set[Connection] = set()
        # Set it and work goes on when its sender has gone.
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def connected(self, connection: Connection) -> None:
        self.connections.add(connection)

    def disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def answer_http1(self) -> bytes:
        return b"HTTP/1.1 400 Bad Request\r\n\r\n"

    def count_broken(self) -> None:
        self.broken += 1

    def read_head(self, fields: Head) -> Head:
        return fields

    def begin(self, stream: Stream[Head]) -> None:
        self.streams.append(stream)
        stream.task = asyncio.get_running_loop().create_task(self._work(stream))

    async def _work(self, stream: Stream[Head]) -> None:
        body = b""
        while not stream.is_ended or stream.has(1):
            await stream.wait_for(1)
            if stream.is_crowded_out:
                break
            for size_bytes in (1000, 1):
                while stream.has(size_bytes):
                    body += stream.take(size_bytes)
        stream.is_taken = True
        await self.may_answer.wait()
        self.bodies.append(body)
        stream.respond(self.answer)


class Peer:
    """The other end of one connection; use it within an event loop."""

    def __init__(self, application: Echo | None = None, opening: bytes | None = None) -> None:
        self.application = application or Echo()
        self.encoder = hpack.Encoder()
        self.transport = MemoryTransport()
        self.connection: Http2Connection[Head] = Http2Connection(self.application)
        self.connection.connection_made(self.transport)
        self.receive(PREFACE + frame(SETTINGS) if opening is None else opening)

    def receive(self, data: bytes) -> None:
        """Let the connection read some bytes, as a transport does."""
        while data:
            buffer = self.connection.get_buffer(-1)
            size_bytes = min(len(data), len(buffer))
            buffer[:size_bytes] = data[:size_bytes]
            self.connection.buffer_updated(size_bytes)
            data = data[size_bytes:]

    def headers(self, stream: int, *more: tuple[str, str], flags: int = END_HEADERS) -> bytes:
        """Return a HEADERS frame of a sound request."""
        fields = [(":method", "POST"), (":scheme", "http"), (":path", "/"), *more]
        return frame(HEADERS, flags, stream, self.encoder.encode(fields))

    def request(self, stream: int) -> bytes:
        """Return a whole request without a body."""
        return self.headers(stream, flags=END_HEADERS | END_STREAM)

    async def say(self, *parts: bytes) -> list[Frame]:
        """Send some frames and return what comes back until nothing more does."""
        self.receive(b"".join(parts))
        return await self.heard()

    async def heard(self) -> list[Frame]:
        """Return what the connection has said since the last time."""
        for _ in range(10):
            await asyncio.sleep(0)
        frames = []
        written = self.transport.written
        while written:
            length = int.from_bytes(written[:3], "big")
            number = int.from_bytes(written[5:9], "big")
            frames.append(Frame(written[3], written[4], number, bytes(written[9 : 9 + length])))
            del written[: 9 + length]
        return frames


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test in an event loop of its own."""
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


def kinds(frames: list[Frame]) -> list[int]:
    """Return the kind of each frame."""
    return [seen.kind for seen in frames]
