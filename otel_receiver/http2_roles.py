"""What the parts of the HTTP/2 server need of each other: a stream of its connection, it of its application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from rootwalk.otel_receiver.connection_limit import Guest
from rootwalk.otel_receiver.http2_frames import ErrorCode
from rootwalk.otel_receiver.http2_limits import Burden, UnreservedMemory
from rootwalk.otel_receiver.http2_stream import Stream

__all__ = ["Application", "Connection"]

HeadT = TypeVar("HeadT")


class Connection(Guest, Burden, Protocol):
    """One connection, to be told what concerns it as a whole."""

    def leave(self) -> None:
        """Take no more requests; those in progress are answered."""

    def close(self, code: ErrorCode = ErrorCode.NO_ERROR, saw: str = "") -> None:
        """End it, and say why if the peer is to blame."""

    def check_time(self, now_s: float) -> None:
        """Ask a silent peer whether it lives, and end the connection when it takes too long."""


class Application(Protocol[HeadT]):
    """What requests are for.

    Attributes:
        buffer: What sockets are read into; connections share it.
        unreserved: What streams hold without a reservation.
        keepalive_s: Silence after which a connection is asked whether it lives.
        read_timeout_s: Longest time from a frame's or a header block's begin to its end.
    """

    buffer: memoryview
    unreserved: UnreservedMemory
    keepalive_s: float
    read_timeout_s: float

    def connected(self, connection: Connection) -> None:
        """Take note of a new connection."""

    def disconnected(self, connection: Connection) -> None:
        """Take note of a connection's end."""

    def answer_http1(self) -> bytes:
        """Return what a client of HTTP/1 is told, and count it."""

    def count_broken(self) -> None:
        """Count a connection that ends because its peer broke the protocol."""

    def read_head(self, fields: Mapping[bytes, bytes] | None) -> HeadT:
        """Return what the header fields of a request mean; None are too many fields."""

    def begin(self, stream: Stream[HeadT]) -> None:
        """Begin to work on a request."""
