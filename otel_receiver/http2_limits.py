"""What peers may make an HTTP/2 server hold and do for nothing.

Source:
    RFC 9113 section 10.5; CVE-2019-9512 to 9518 (floods), CVE-2023-44487 (rapid reset).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rootwalk.otel_receiver.http2_frames import ErrorCode, Http2ConnectionError

__all__ = ["IdleFrames", "UnreservedMemory"]

# Frames that bring nothing (PING, SETTINGS, RST_STREAM, empty DATA, ...) are free up to so many in that time; each
# answered request pays for some more, because good clients ping while they send.
MAX_IDLE_FRAMES: Final = 10_000
IDLE_FRAMES_S: Final = 10.0
PAID_FRAMES: Final = 8


class UnreservedMemory:
    """Counts what streams of all connections hold before memory is reserved for them."""

    __slots__ = ("_limit_bytes", "held_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes

    def take(self, more_bytes: int) -> bool:
        """Count so much more if it is within the limit; say whether it is."""
        if self.held_bytes + more_bytes > self._limit_bytes:
            return False
        self.held_bytes += more_bytes
        return True

    def give_back(self, held_bytes: int) -> None:
        """Count so much less."""
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
