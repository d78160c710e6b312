"""Where servers listen: HOST:PORT as text, and sockets that say why they cannot be bound."""

from __future__ import annotations

import contextlib
import ipaddress
import resource
import socket
from dataclasses import dataclass
from typing import Final

from rootwalk.instrumentation.errors import ConfigError

__all__ = [
    "ACCEPTS_AT_ONCE",
    "BACKLOG",
    "ListenAddress",
    "bind",
    "parse_address",
    "raise_descriptor_limit",
]

# Connections that wait until the event loop takes them; a thousand ranks may start in the same second.
BACKLOG: Final = 4096
# Connections that are taken before others have their turn. The event loop would otherwise take all that wait at once,
# and where descriptors end, write a message for each.
ACCEPTS_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen; port 0 lets the kernel choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str, option: str) -> ListenAddress:
    """Return HOST:PORT as an address.

    Raises:
        ConfigError: If it is not of that form.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            f'cannot listen on "{text}": saw no host and port; needs HOST:PORT with a port up to 65535',
            hint=f"{option} 127.0.0.1:0 lets the system choose a free port",
        )
    return ListenAddress(host, int(port))


def bind(address: ListenAddress, option: str) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigError: If the address is in use or is not an address of this machine.
    """
    bound: socket.socket | None = None
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
        bound.listen(BACKLOG)
    except OSError as error:
        if bound is not None:
            bound.close()
        saw = (
            (error.strerror or str(error))
            .lower()
            .replace("address already in use", "address in use")
        )
        raise ConfigError(
            f"cannot listen on {address}: {saw}; needs a free port of this machine",
            hint=f"{option} 127.0.0.1:0 lets the system choose a free port",
        ) from error
    return bound


def raise_descriptor_limit() -> None:
    """Allow as many open connections as the system lets this process have without asking anyone."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
