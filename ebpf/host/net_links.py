"""How often the links of a network namespace have gone down and come up, as the kernel tells in a dump (rtnetlink).

/sys/class/net shows the namespace of whoever mounted it; this asks the one that its socket was opened in.

Source: include/uapi/linux/if_link.h, IFLA_CARRIER_CHANGES (Linux 3.15).
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from rootwalk.ebpf.inet_diag import NLM_F_DUMP, NLM_F_REQUEST, split_messages
from rootwalk.ebpf.net_namespaces import read_in_namespace
from rootwalk.instrumentation.errors import DecodeError, UnavailableError

__all__ = ["NamespaceLinks", "decode_changes"]

NETLINK_ROUTE, RTM_NEWLINK, RTM_GETLINK = 0, 16, 18
IFLA_IFNAME, IFLA_CARRIER_CHANGES = 3, 35
HEADER = struct.Struct("=IHHII")
# struct ifinfomsg: family, type, index, flags, changed flags.
ABOUT = struct.Struct("=BxHiII")
ATTRIBUTE = struct.Struct("=HH")
NUMBER = struct.Struct("=I")
RECEIVE_BYTES = 65_536
# Of a dump; a link takes a kilobyte or two.
MAX_DATAGRAMS = 64


class NamespaceLinks:
    """Asks one network namespace for its links.

    Args:
        file: The namespace, as /proc/<pid>/ns/net names it.

    Raises:
        OSError: If it cannot be entered.
    """

    def __init__(self, file: Path) -> None:
        self._sequence = 0
        try:
            self._socket = read_in_namespace(file, _open)
        except UnavailableError as error:
            raise OSError(str(error)) from error

    def read(self) -> dict[str, int]:
        """Return how often the carrier of each link has changed; what could not be read is missing."""
        self._sequence += 1
        body = ABOUT.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        head = (HEADER.size + len(body), RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, self._sequence, 0)
        changes: dict[str, int] = {}
        with contextlib.suppress(OSError, DecodeError):
            self._socket.send(HEADER.pack(*head) + body)
            for _ in range(MAX_DATAGRAMS):
                data = self._socket.recv(RECEIVE_BYTES)
                for kind, _, sequence, begin, end in split_messages(data):
                    if sequence != self._sequence:
                        continue  # of a dump that was given up
                    if kind != RTM_NEWLINK:
                        return changes
                    changes.update(decode_changes(data[begin + HEADER.size : end]))
        return changes

    def close(self) -> None:
        """Close the socket; safe twice."""
        self._socket.close()


def decode_changes(body: bytes) -> dict[str, int]:
    """Return name and changes of one link; nothing where the kernel told one of them not."""
    name, count = None, None
    for kind, value in _attributes(body):
        if kind == IFLA_IFNAME:
            name = value.rstrip(b"\0").decode("ascii", errors="replace")
        elif kind == IFLA_CARRIER_CHANGES and len(value) == NUMBER.size:
            (count,) = NUMBER.unpack(value)
    return {name: int(count)} if name and count is not None else {}


def _attributes(body: bytes) -> Iterator[tuple[int, bytes]]:
    offset = ABOUT.size
    while offset + ATTRIBUTE.size <= len(body):
        length, kind = ATTRIBUTE.unpack_from(body, offset)
        if length < ATTRIBUTE.size or offset + length > len(body):
            return
        yield kind, body[offset + ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def _open() -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE)
    # The kernel answers before it returns from a call.
    opened.setblocking(False)
    return opened
