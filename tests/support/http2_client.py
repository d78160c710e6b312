"""An HTTP/2 client that sends whatever a test wants, good or bad, frame by frame; header blocks are hpack's."""

from __future__ import annotations

import socket
import ssl
import struct
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import hpack

from support.otlp_paths import TRACE_EXPORT

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as it came."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM or GOAWAY."""
        offset = 4 if self.kind == GOAWAY else 0
        return int.from_bytes(self.payload[offset : offset + 4], "big")


@dataclass
class Answer:
    """What came back on a stream."""

    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    reset_code: int | None = None

    @property
    def status(self) -> str | None:
        """The gRPC status, as text."""
        return self.fields.get("grpc-status")


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Return the bytes of one frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(**values: int) -> bytes:
    """Return a SETTINGS frame: `settings(_4=0)` sets the initial window to 0."""
    payload = b"".join(struct.pack(">HI", int(k[1:]), v) for k, v in values.items())
    return frame(SETTINGS, payload=payload)


def word(value: int) -> bytes:
    """Return four bytes: a window's increment, an error's code or a stream's number."""
    return struct.pack(">I", value)


def message(body: bytes, flag: int = 0) -> bytes:
    """Return a gRPC message with its prefix."""
    return struct.pack(">BI", flag, len(body)) + body


def grpc_fields(path: str = TRACE_EXPORT, **more: str) -> list[tuple[str, str]]:
    """Return the header fields of a gRPC request."""
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *((name.replace("_", "-"), value) for name, value in more.items()),
    ]


class Http2Client:
    """One connection; a context manager.

    Args:
        address: HOST:PORT.
        opening: The first bytes; by default what a good client says.
        tls: How to speak TLS; None to speak in the clear.
    """

    def __init__(
        self,
        address: str,
        opening: bytes = PREFACE + frame(SETTINGS),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        self.encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._unread = b""
        self._answers: dict[int, Answer] = {}
        self._answered: set[int] = set()
        if opening:
            self.send(opening)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(b"".join(parts))

    def headers(
        self, stream: int, fields: list[tuple[str, str]] | None = None, flags: int = END_HEADERS
    ) -> bytes:
        """Return a HEADERS frame; of an export of spans if nothing else is asked for."""
        block = self.encoder.encode(grpc_fields() if fields is None else fields)
        return frame(HEADERS, flags, stream, block)

    def request(self, stream: int, body: bytes = b"", **more: str) -> bytes:
        """Return the frames of a whole small export of spans."""
        return self.headers(stream, grpc_fields(**more)) + frame(
            DATA, END_STREAM, stream, message(body)
        )

    def read_frame(self) -> Frame | None:
        """Return the next frame, or None at the connection's end."""
        head = self._read_exactly(9)
        payload = None if head is None else self._read_exactly(int.from_bytes(head[:3], "big"))
        if head is None or payload is None:
            return None
        seen = Frame(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
        answer = self._answers.setdefault(seen.stream, Answer())
        match seen.kind:
            case 0:
                answer.body += payload
            case 1:
                fields = self._decoder.decode(payload)
                answer.fields.update((str(name), str(value)) for name, value in fields)
            case 3:
                answer.reset_code = seen.code
        if seen.kind == RST_STREAM or (seen.kind in (DATA, HEADERS) and seen.flags & END_STREAM):
            self._answered.add(seen.stream)
        return seen

    def read_until(self, *kinds: int) -> Frame:
        """Return the next frame of one of these kinds."""
        while (seen := self.read_frame()) is not None:
            if seen.kind in kinds:
                return seen
        raise AssertionError(f"the connection ended before a frame of the kinds {kinds}")

    def read_answers(self, *streams: int) -> dict[int, Answer]:
        """Return what comes back on these streams, when all of it has come."""
        while not self._answered.issuperset(streams):
            seen = self.read_frame()
            assert seen is not None, f"the connection ended before the answers of {streams}"
            assert seen.kind != GOAWAY or seen.code == 0, seen.payload[8:]
        return {stream: self._answers[stream] for stream in streams}

    def read_answer(self, stream: int) -> Answer:
        """Return what comes back on one stream."""
        return self.read_answers(stream)[stream]

    def read_to_end(self) -> list[Frame]:
        """Return all frames until the connection ends."""
        frames = []
        while (seen := self.read_frame()) is not None:
            frames.append(seen)
        return frames

    def _read_exactly(self, size_bytes: int) -> bytes | None:
        while len(self._unread) < size_bytes:
            try:
                part = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not part:
                return None
            self._unread += part
        taken, self._unread = self._unread[:size_bytes], self._unread[size_bytes:]
        return taken


def ask(address: str, body: bytes, **more: str) -> Answer:
    """Return the answer to an export of spans whose DATA is `body`, over a connection of its own."""
    with Http2Client(address) as client:
        client.send(client.headers(1, grpc_fields(**more)), frame(DATA, END_STREAM, 1, body))
        return client.read_answer(1)
