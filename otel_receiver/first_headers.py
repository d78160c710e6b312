"""Connections of the HTTP/1 server: counted with all others, and closed when nothing useful ever comes over them.

aiohttp limits the time between two requests of a connection and not the time until the first. A sender that opens one
and sends its headers byte by byte would keep it as long as it likes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rootwalk.otel_receiver.connection_limit import ConnectionLimit

__all__ = ["FirstHeaders"]


class _HttpGuest:
    """A connection of aiohttp's."""

    __slots__ = ("protocol", "requests", "timer")

    def __init__(self, protocol: Any, timer: asyncio.TimerHandle) -> None:
        self.protocol = protocol
        self.timer: asyncio.TimerHandle | None = timer
        self.requests = 0

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress."""
        return self.requests > 0

    def abort(self) -> bool:
        """End it at once."""
        if self.protocol.transport is None:
            return False
        self.protocol.transport.abort()
        return True


class FirstHeaders:
    """Makes a server's protocols, and closes those whose first request has no end of headers in time.

    Args:
        runner: Of the server, set up; it makes a protocol for each connection.
        timeout_s: From the connection to the end of the first headers.
        connections: Where connections are counted.
    """

    def __init__(self, runner: Any, timeout_s: float, connections: ConnectionLimit) -> None:
        self._make_protocol = runner.server
        self._timeout_s = timeout_s
        self._connections = connections
        self._guests: dict[Any, _HttpGuest] = {}
        self._tell_server = runner.server.connection_lost
        runner.server.connection_lost = self._lost

    def __call__(self) -> Any:
        """Return the protocol of a new connection.

        Raises:
            ConnectionRefusedError: If there are as many connections as there may be.
        """
        self._connections.make_room()
        protocol = self._make_protocol()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._timeout_s, self._close, protocol)
        guest = self._guests[protocol] = _HttpGuest(protocol, timer)
        self._connections.add(guest)
        return protocol

    def arrived(self, protocol: Any) -> None:
        """Say that a request's headers are there."""
        guest = self._guests.get(protocol)
        if guest is None:
            return
        guest.requests += 1
        if guest.timer is not None:
            guest.timer.cancel()
            guest.timer = None

    def answered(self, protocol: Any) -> None:
        """Say that the request has its answer."""
        guest = self._guests.get(protocol)
        if guest is not None:
            guest.requests -= 1

    def prove(self, protocol: Any) -> None:
        """Say that a request of this connection is durable."""
        guest = self._guests.get(protocol)
        if guest is not None:
            self._connections.prove(guest)

    def _lost(self, protocol: Any, error: BaseException | None = None) -> None:
        self._forget(protocol)
        self._tell_server(protocol, error)

    def _forget(self, protocol: Any) -> None:
        guest = self._guests.pop(protocol, None)
        if guest is None:
            return
        if guest.timer is not None:
            guest.timer.cancel()
        self._connections.remove(guest)

    def _close(self, protocol: Any) -> None:
        self._forget(protocol)
        if protocol.transport is not None:
            protocol.transport.close()
