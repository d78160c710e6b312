"""Connections over which nothing useful ever comes: closed, so that they hold no descriptor for ever.

aiohttp limits the time between two requests of a connection and not the time until the first. A sender that opens one
and sends its headers byte by byte would keep it as long as it likes.
"""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["FirstHeaders"]


class FirstHeaders:
    """Makes a server's protocols, and closes those whose first request has no end of headers in time.

    Args:
        runner: Of the server, set up; it makes a protocol for each connection.
        timeout_s: From the connection to the end of the first headers.
    """

    def __init__(self, runner: Any, timeout_s: float) -> None:
        self._make_protocol = runner.server
        self._timeout_s = timeout_s
        self._timers: dict[Any, asyncio.TimerHandle] = {}

    def __call__(self) -> Any:
        """Return the protocol of a new connection."""
        protocol = self._make_protocol()
        loop = asyncio.get_running_loop()
        self._timers[protocol] = loop.call_later(self._timeout_s, self._close, protocol)
        return protocol

    def arrived(self, protocol: Any) -> None:
        """Say that a request's headers are there."""
        timer = self._timers.pop(protocol, None)
        if timer is not None:
            timer.cancel()

    def _close(self, protocol: Any) -> None:
        del self._timers[protocol]
        if protocol.transport is not None:
            protocol.transport.close()
