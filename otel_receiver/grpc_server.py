"""OTLP over gRPC, on HTTP/2 of our own.

Every message says how large it is before it comes: memory for it is reserved first, and its sender sends the rest when
there is. Bytes are not parsed here; they go to `Ingest` as they came.

Source:
    OTLP 1.11: services, status codes, RetryInfo. gRPC health checking protocol, grpc.health.v1.Health/Check.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from rootwalk.otel_receiver.addresses import ACCEPTS_AT_ONCE, BACKLOG, ListenAddress, bind
from rootwalk.otel_receiver.answers import Outcome, Result
from rootwalk.otel_receiver.grpc_calls import (
    GRPC_ENCODINGS,
    PREFIX,
    Call,
    CallKind,
    answer_health,
    build_refusal,
    build_success,
    read_call,
)
from rootwalk.otel_receiver.http2_connection import READ_BYTES, Http2Connection
from rootwalk.otel_receiver.http2_limits import UnreservedMemory
from rootwalk.otel_receiver.http2_roles import Connection
from rootwalk.otel_receiver.http2_stream import Stream
from rootwalk.otel_receiver.ingest import Ingest, IngestRefusal, no_room_now
from rootwalk.otel_receiver.memory_gate import (
    FIRST_BODY_BYTES,
    REQUEST_OVERHEAD_BYTES,
    Reservation,
    next_reservation,
)
from rootwalk.otel_receiver.request_checks import build_export_response
from rootwalk.otel_receiver.server_options import ServerOptions

__all__ = ["GrpcServer"]

TRANSPORT: Final = "grpc"
# Time that requests in progress have to end when the server stops.
GRACE_S: Final = 5.0
# What all streams may hold before memory is reserved for them, as a share of the memory limit: within its headroom.
UNRESERVED_RATIO: Final = 1 / 16
# How often connections are looked at: a fourth of the shortest time that they may take for anything, and no more than
MAX_WATCH_INTERVAL_S: Final = 1.0
# A name of a service is all that a health check may hold.
MAX_HEALTH_BYTES: Final = 1024
_HTTP1_TEXT: Final = (
    b"this port speaks OTLP over gRPC; OTLP over HTTP has a port of its own, 4318 by default\n"
)
_HTTP1_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_HTTP1_TEXT), _HTTP1_TEXT)
)


class GrpcServer:
    """OTLP/gRPC; `start` once, then `stop` once or more. Connections use the attributes."""

    def __init__(self, ingest: Ingest, address: ListenAddress, options: ServerOptions) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.unreserved = UnreservedMemory(
            round(ingest.gate.plan.limit_bytes * UNRESERVED_RATIO), lambda: list(self._connections)
        )
        self.keepalive_s = options.keepalive_s
        self.read_timeout_s = options.read_timeout_s
        self._ingest = ingest
        self._address = address
        self._options = options
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch_task: asyncio.Task[None] | None = None

    async def start(self) -> ListenAddress:
        """Listen and return the real address.

        Raises:
            ConfigError: If the address cannot be listened on, or the certificates cannot be used.
        """
        tls = self._options.tls
        context = None if tls is None else tls.server_context()
        if context is not None:
            context.set_alpn_protocols(["h2"])
        bound = bind(self._address, "--grpc")
        port = bound.getsockname()[1]
        self._server = await asyncio.get_running_loop().create_server(
            self._connect,
            sock=bound,
            ssl=context,
            ssl_handshake_timeout=None if context is None else self.read_timeout_s,
            backlog=ACCEPTS_AT_ONCE,
        )
        bound.listen(BACKLOG)
        self._watch_task = asyncio.create_task(self._watch())
        return ListenAddress(self._address.host, port)

    async def stop(self) -> None:
        """Let requests in progress end, then close."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for connection in self._connections:
            connection.leave()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._connections):
            connection.close()
        if self._watch_task is not None:
            self._watch_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch_task

    def _connect(self) -> Http2Connection[Call]:
        """Return the protocol of a new connection.

        Raises:
            ConnectionRefusedError: If there are as many connections as there may be.
        """
        self._options.connections.make_room()
        connection = Http2Connection(self)
        self._options.connections.add(connection)
        return connection

    def connected(self, connection: Connection) -> None:
        """Take note of a new connection."""
        self._connections.add(connection)

    def disconnected(self, connection: Connection) -> None:
        """Take note of a connection's end."""
        self._connections.discard(connection)
        self._options.connections.remove(connection)

    def answer_http1(self) -> bytes:
        """Return what a client of HTTP/1 is told, and count it."""
        self._ingest.counters.count_lost_request("not_grpc")
        return _HTTP1_ANSWER

    def count_broken(self) -> None:
        """Count a connection whose peer broke the protocol."""
        self._ingest.counters.count_lost_request("broken_protocol")

    def read_head(self, fields: Mapping[bytes, bytes] | None) -> Call:
        """Return what the header fields of a request mean."""
        return read_call(fields)

    def begin(self, stream: Stream[Call]) -> None:
        """Begin to work on a request."""
        call = stream.head
        if call.refusal is not None:
            self._ingest.counters.count_lost_request(call.reason)
            stream.respond(call.refusal)
            return
        work = self._export(stream) if call.kind is CallKind.EXPORT else self._check_health(stream)
        task = stream.task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _export(self, stream: Stream[Call]) -> None:
        call = stream.head

        async def work(held: Reservation) -> Outcome:
            self._options.check_token(call.authorization)
            self._ingest.check_backlog()
            is_compressed, body = await self._read(stream, held)
            stream.is_taken = True
            encoding = call.encoding if is_compressed else "identity"
            return await self._ingest.accept(call.signal, body, held, encoding=encoding)

        outcome = await self._ingest.answer(call.signal, TRANSPORT, work)
        if outcome.result is not Result.DURABLE:
            stream.respond(build_refusal(outcome))
            return
        if isinstance(stream.link, Http2Connection):
            self._options.connections.prove(stream.link)
        message = build_export_response(call.signal, outcome.rejected, outcome.message)
        stream.respond(build_success(message.SerializeToString()))

    async def _read(self, stream: Stream[Call], held: Reservation) -> tuple[bool, bytearray]:
        """Return whether the one message of a request is compressed, and its bytes."""
        encoding = stream.head.encoding
        if encoding not in GRPC_ENCODINGS:
            raise IngestRefusal(
                Result.UNKNOWN_ENCODING,
                f'cannot read the encoding "{encoding[:80]}"; needs {", ".join(GRPC_ENCODINGS)}',
            )
        deadline_s = asyncio.get_running_loop().time() + self._options.read_timeout_s
        prefix = await self._take(stream, PREFIX.size, deadline_s)
        is_compressed, size_bytes = PREFIX.unpack(prefix)
        if is_compressed > (encoding != "identity"):
            raise IngestRefusal(
                Result.BAD_FRAMING,
                f'cannot read the message: saw flag {is_compressed} with the encoding "{encoding}"; '
                "needs 0 for identity, 1 for what is compressed",
            )
        self._ingest.check_size(size_bytes)
        if stream.is_ended and not stream.has(size_bytes):
            raise _cut_short(size_bytes)
        # As it arrives, not as it is announced: the next part is let in when the last is there.
        there_bytes = min(size_bytes, FIRST_BODY_BYTES)
        await self._await_body(stream, there_bytes, size_bytes, deadline_s)
        while True:
            there_bytes = next_reservation(there_bytes, size_bytes)
            await self._ingest.reserve(held, there_bytes + REQUEST_OVERHEAD_BYTES)
            stream.admit(there_bytes)
            await self._await_body(stream, there_bytes, size_bytes, deadline_s)
            if there_bytes == size_bytes:
                break
        body = stream.take(size_bytes)
        if not stream.is_ended:
            await self._wait(stream, 1, deadline_s)
        if stream.has(1):
            raise _malformed("saw more than one message; needs one")
        return bool(is_compressed), body

    async def _await_body(
        self, stream: Stream[Call], part_bytes: int, size_bytes: int, deadline_s: float
    ) -> None:
        """Return when a part of a message of `size_bytes` is there."""
        if stream.has(part_bytes):
            return
        await self._wait(stream, part_bytes, deadline_s)
        if stream.is_crowded_out:
            raise no_room_now()
        if not stream.has(part_bytes):
            raise _cut_short(size_bytes)

    async def _take(self, stream: Stream[Call], size_bytes: int, deadline_s: float) -> bytearray:
        if not stream.has(size_bytes):
            await self._wait(stream, size_bytes, deadline_s)
            if stream.is_crowded_out:
                raise no_room_now()
            if not stream.has(1):
                raise _malformed("saw no message; needs one")
            if not stream.has(size_bytes):
                raise _cut_short(size_bytes)
        return stream.take(size_bytes)

    async def _wait(self, stream: Stream[Call], size_bytes: int, deadline_s: float) -> None:
        try:
            async with asyncio.timeout_at(deadline_s):
                await stream.wait_for(size_bytes)
        except TimeoutError:
            raise IngestRefusal(
                Result.SLOW_SENDER,
                f"cannot accept the request: its body took longer than {self._options.read_timeout_s:g} s; "
                "send again later",
            ) from None

    async def _check_health(self, stream: Stream[Call]) -> None:
        """Answer a health check, which anybody may ask for."""
        try:
            deadline_s = asyncio.get_running_loop().time() + self._options.read_timeout_s
            _, size_bytes = PREFIX.unpack(await self._take(stream, PREFIX.size, deadline_s))
            if size_bytes > MAX_HEALTH_BYTES:
                raise _malformed(f"saw {size_bytes} bytes; needs the name of a service")
            answer = answer_health(await self._take(stream, size_bytes, deadline_s))
        except IngestRefusal as refusal:
            answer = build_refusal(refusal.outcome)
        stream.respond(answer)

    async def _watch(self) -> None:
        """Look at the clock for all connections."""
        loop = asyncio.get_running_loop()
        shortest_s = min(self.keepalive_s, self.read_timeout_s)
        while True:
            await asyncio.sleep(min(MAX_WATCH_INTERVAL_S, shortest_s / 4))
            now_s = loop.time()
            for connection in list(self._connections):
                connection.check_time(now_s)


def _cut_short(size_bytes: int) -> IngestRefusal:
    return _malformed(f"saw its end before {size_bytes} bytes of it; needs one whole message")


def _malformed(saw: str) -> IngestRefusal:
    return IngestRefusal(Result.MALFORMED, f"cannot accept the request: {saw}")
