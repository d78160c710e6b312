"""Ports for servers that cannot choose one themselves."""

from __future__ import annotations

import contextlib
import socket

__all__ = ["free_port", "free_ports"]


def free_ports(count: int) -> list[int]:
    """Return different TCP ports of loopback that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in listeners]


def free_port() -> int:
    """Return a TCP port of loopback that nobody listens on now."""
    return free_ports(1)[0]
