"""How many connections both servers keep open, so that descriptors are left for the store and the journal.

    new connection, all places taken:  close the oldest that never brought anything durable,
                                       else the one that brought nothing for longest; else refuse the new one

A peer that only opens sockets so closes its own, and clients whose telemetry was accepted keep theirs.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from typing import Final, Protocol

__all__ = ["ConnectionLimit", "Guest", "default_limit"]

# Descriptors for the store, the journal, targets to forward to, and what libraries open; at most this part of all.
RESERVED_DESCRIPTORS: Final = 256
MAX_RESERVED_RATIO: Final = 1 / 3


class Guest(Protocol):
    """One connection."""

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress; only connections that brought something durable are spared for it."""

    def abort(self) -> bool:
        """End the connection at once; False where that cannot be done yet (a TLS handshake)."""


def default_limit() -> int:
    """Return how many connections the process may have by its limit of descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1_000_000
    return soft - min(RESERVED_DESCRIPTORS, round(soft * MAX_RESERVED_RATIO))


class ConnectionLimit:
    """Counts connections and makes room for new ones; for one event loop.

    Args:
        limit: The most at a time; None for what the descriptors allow.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        # Each in the order of their last durable request, or of their begin.
        self._unproven: OrderedDict[Guest, None] = OrderedDict()
        self._proven: OrderedDict[Guest, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._unproven) + len(self._proven)

    def make_room(self) -> None:
        """Close another connection where all places are taken.

        Raises:
            ConnectionRefusedError: If none can be closed.
        """
        # Asked each time: the limit of a running process may be changed.
        limit = default_limit() if self._limit is None else self._limit
        while len(self) >= limit:
            if not (self._close_oldest(self._unproven) or self._close_oldest(self._proven)):
                raise ConnectionRefusedError("all connections are in use")

    def add(self, guest: Guest) -> None:
        """Count a connection that begins."""
        self._unproven[guest] = None

    def prove(self, guest: Guest) -> None:
        """Take note that a connection brought something durable."""
        if self._unproven.pop(guest, self) is None:
            self._proven[guest] = None
        elif guest in self._proven:
            self._proven.move_to_end(guest)

    def remove(self, guest: Guest) -> None:
        """Count a connection no more."""
        self._unproven.pop(guest, None)
        self._proven.pop(guest, None)

    def _close_oldest(self, guests: OrderedDict[Guest, None]) -> bool:
        for guest in guests:
            if (guests is self._unproven or not guest.is_busy) and guest.abort():
                self.remove(guest)
                return True
        return False
