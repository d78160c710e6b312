"""What peers may make an HTTP/2 server hold and do for nothing.

Source:
    RFC 9113 section 10.5; CVE-2019-9512 to 9518 (floods), CVE-2023-44487 (rapid reset).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from rootwalk.otel_receiver.http2_frames import ErrorCode, Http2ConnectionError

__all__ = [
    "REFUSED_FRAMES",
    "Burden",
    "IdleFrames",
    "MemoryShare",
    "UnreservedMemory",
    "Waiting",
    "any_unread",
    "measure_burden",
]

# Frames that bring nothing (PING, SETTINGS, RST_STREAM, empty DATA, ...) are free up to so many in that time; each
# answered request pays for some more, because good clients ping while they send.
MAX_IDLE_FRAMES: Final = 10_000
IDLE_FRAMES_S: Final = 10.0
PAID_FRAMES: Final = 8
# An answer that refuses a request whatever its message is costs as much as some frames that bring nothing.
REFUSED_FRAMES: Final = 4
# Where unreserved memory is used up: so much of it is freed at once, and nothing of who waits for less than that time.
FREED_RATIO: Final = 1 / 8
MIN_WAIT_S: Final = 0.5
# The last part of the limit is for connections that hold little, and only those are closed that hold at least this part
# of the mean: a client with one request at a time neither fails for want of memory nor is closed for what others hold.
KEPT_RATIO: Final = 1 / 8
LITTLE_RATIO: Final = 1 / 64
MIN_SHARE_OF_MEAN: Final = 1 / 2


class Burden(Protocol):
    """A connection, as what it holds for its peer without a reservation."""

    def burden(self) -> tuple[int, float]:
        """Return the bytes that its streams hold, and for how long the oldest of them has waited, seconds."""

    def close(self, code: ErrorCode, saw: str) -> None:
        """End it, and say why."""


class UnreservedMemory:
    """Counts what streams of all connections hold before memory is reserved for them, or until their answer is read.

    Where the limit is reached, the connections that hold most for longest are closed, up to a part of the limit, so
    that one peer that opens streams and sends nothing closes its own connections and not those of others. Until its
    streams have waited for long enough to be known as such, what is left of the limit is for those that hold little.

    Args:
        limit_bytes: What all streams may hold.
        list_connections: Those that may be closed; none in tests.
    """

    __slots__ = ("_limit_bytes", "_list_connections", "held_bytes")

    def __init__(
        self, limit_bytes: int, list_connections: Callable[[], Iterable[Burden]] = tuple
    ) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._list_connections = list_connections

    def take(self, more_bytes: int, of_connection_bytes: int = 0) -> bool:
        """Count so much more for a connection that holds so much, if it is within the limit; say whether it is."""
        limit_bytes = self._limit_bytes
        if of_connection_bytes + more_bytes > limit_bytes * LITTLE_RATIO:
            limit_bytes -= round(limit_bytes * KEPT_RATIO)
        if self.held_bytes + more_bytes > limit_bytes:
            self._close_heaviest(limit_bytes - round(limit_bytes * FREED_RATIO))
            if self.held_bytes + more_bytes > limit_bytes:
                return False
        self.held_bytes += more_bytes
        return True

    def _close_heaviest(self, enough_bytes: int) -> None:
        burdens = [(*connection.burden(), connection) for connection in self._list_connections()]
        burdens = [burden for burden in burdens if burden[0]]
        if not burdens:
            return
        mean_bytes = sum(held for held, _, _ in burdens) / len(burdens)
        # One that waits only now is a client in the midst of its work; what one that holds little frees helps nobody.
        burdens = [
            burden
            for burden in burdens
            if burden[0] >= mean_bytes * MIN_SHARE_OF_MEAN and burden[1] >= MIN_WAIT_S
        ]
        burdens.sort(key=lambda burden: burden[0] * burden[1], reverse=True)
        for _, _, connection in burdens:
            if self.held_bytes <= enough_bytes:
                return
            connection.close(
                ErrorCode.ENHANCE_YOUR_CALM, "saw requests that do not go on, and others wait"
            )

    def give_back(self, held_bytes: int) -> None:
        """Count so much less."""
        self.held_bytes -= held_bytes


class MemoryShare:
    """What the streams of one connection hold of the unreserved memory.

    Args:
        memory: Of all connections.
    """

    __slots__ = ("_memory", "held_bytes")

    def __init__(self, memory: UnreservedMemory) -> None:
        self._memory = memory
        self.held_bytes = 0

    def take(self, more_bytes: int) -> bool:
        """Count so much more if it is within the limit; say whether it is."""
        if not self._memory.take(more_bytes, self.held_bytes):
            return False
        self.held_bytes += more_bytes
        return True

    def give_back(self, held_bytes: int) -> None:
        """Count so much less."""
        self._memory.give_back(held_bytes)
        self.held_bytes -= held_bytes


class IdleFrames:
    """Counts what one peer sends that brings nothing."""

    __slots__ = ("_clock", "_count", "_since_s")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s = clock()
        self._count = 0

    def count(self, frames: int) -> None:
        """Count some more.

        Raises:
            Http2ConnectionError: If they are too many.
        """
        self._count += frames
        if self._count > MAX_IDLE_FRAMES:
            now_s = self._clock()
            if now_s - self._since_s < IDLE_FRAMES_S:
                raise Http2ConnectionError(
                    ErrorCode.ENHANCE_YOUR_CALM, f"saw {MAX_IDLE_FRAMES} frames that bring nothing"
                )
            self._since_s, self._count = now_s, frames

    def pay(self) -> None:
        """Take note of an answered request."""
        self._count = max(0, self._count - PAID_FRAMES)


class Waiting(Protocol):
    """A stream, as what it makes its connection hold."""

    began_s: float

    @property
    def unreserved_bytes(self) -> int:
        """What it holds without a reservation."""

    @property
    def is_held_up(self) -> bool:
        """Whether its answer waits for a window."""


def measure_burden(streams: Iterable[Waiting], now_s: float) -> tuple[int, float]:
    """Return the bytes that streams hold without a reservation, and how long the oldest of them has waited, seconds."""
    held = [stream for stream in streams if stream.unreserved_bytes]
    if not held:
        return 0, 0.0
    oldest_s = min(stream.began_s for stream in held)
    return sum(stream.unreserved_bytes for stream in held), now_s - oldest_s


def any_unread(streams: Iterable[Waiting], before_s: float) -> bool:
    """Return whether an answer has waited for a window since then: its peer does not read it."""
    return any(stream.is_held_up and stream.began_s < before_s for stream in streams)
