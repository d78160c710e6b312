"""A network driver's own statistics, by the call that ethtool makes.

Knows nothing of what they mean. Needs no privilege: the kernel lets everyone read them. A driver may ask its card's
firmware for them: tens of microseconds for virtio, some milliseconds of waiting for a large card.

Source: include/uapi/linux/ethtool.h, net/ethtool/ioctl.c; the layout of struct ifreq from netdevice(7).
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

__all__ = ["Ethtool", "decode_names", "decode_values"]

SIOCETHTOOL = 0x8946
GSTRINGS, GSTATS, GSSET_INFO = 0x1B, 0x1D, 0x37
STATISTICS_SET = 1
NAME_BYTES, VALUE_BYTES = 32, 8
INTERFACE_NAME_BYTES = 16
# A name of 16 bytes and a union of 24, of which the first 8 are the address here.
REQUEST = struct.Struct("=16sQ16x")
NAMES_HEAD = struct.Struct("=III")  # command, set, count
VALUES_HEAD = struct.Struct("=II")  # command, count
SET_INFO = struct.Struct("=IIQI")  # command, reserved, mask of sets, count of the only one
# The kernel copies as many as there are by then, whatever was asked for: room for a driver that has got new queues.
SPARE = 4_096
# No driver has more; a count beyond it is not believed.
MAX_COUNT = 65_536


def decode_names(answer: bytes) -> list[str]:
    """Return the names in an answer to GSTRINGS."""
    _, _, count = NAMES_HEAD.unpack_from(answer)
    start = NAMES_HEAD.size
    names = (answer[at : at + NAME_BYTES] for at in range(start, len(answer), NAME_BYTES))
    return [
        name.partition(b"\0")[0].decode(errors="replace").strip()
        for name, _ in zip(names, range(count), strict=False)
    ]


def decode_values(answer: bytes) -> list[int]:
    """Return the numbers in an answer to GSTATS."""
    _, count = VALUES_HEAD.unpack_from(answer)
    room = (len(answer) - VALUES_HEAD.size) // VALUE_BYTES
    return list(struct.unpack_from(f"={min(count, room)}Q", answer, VALUES_HEAD.size))


class Ethtool:
    """Asks drivers for their statistics, in the network namespace of whoever opens it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._names: dict[str, list[str]] = {}

    def read(self, interface: str) -> dict[str, int]:
        """Return an interface's statistics by name; empty where the driver has none, or the interface is gone."""
        if len(interface.encode()) >= INTERFACE_NAME_BYTES:
            return {}
        try:
            count = self._count(interface)
            if not 0 < count <= MAX_COUNT:
                return {}
            names = self._names.get(interface, [])
            if len(names) != count:  # first seen, or its queues have changed
                head = NAMES_HEAD.pack(GSTRINGS, STATISTICS_SET, count)
                names = decode_names(self._ask(interface, head, (count + SPARE) * NAME_BYTES))
                self._names[interface] = names
            head = VALUES_HEAD.pack(GSTATS, count)
            values = decode_values(self._ask(interface, head, (count + SPARE) * VALUE_BYTES))
        except OSError:
            self._names.pop(interface, None)
            return {}
        return dict(zip(names, values, strict=True)) if len(names) == len(values) else {}

    def _count(self, interface: str) -> int:
        asked = SET_INFO.pack(GSSET_INFO, 0, 1 << STATISTICS_SET, 0)
        _, _, known, count = SET_INFO.unpack_from(self._ask(interface, asked, 0))
        return int(count) if known else 0

    def _ask(self, interface: str, head: bytes, room: int) -> bytes:
        buffer = ctypes.create_string_buffer(head, len(head) + room)
        request = REQUEST.pack(interface.encode(), ctypes.addressof(buffer))
        fcntl.ioctl(self._socket, SIOCETHTOOL, request)
        return buffer.raw

    def close(self) -> None:
        """Close the socket; safe twice."""
        self._socket.close()
