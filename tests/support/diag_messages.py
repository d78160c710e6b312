"""Netlink messages as the kernel writes them, and a kernel made by hand that sends them."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterable

HEADER = struct.Struct("=IHHII")
DONE, ERROR, BY_FAMILY = 3, 2, 20


def message(kind: int, payload: bytes, sequence: int = 1, flags: int = 2) -> bytes:
    """One message with its header."""
    length = HEADER.size + len(payload)
    return HEADER.pack(length, kind, flags, sequence, 0) + payload + bytes(-length % 4)


def identity(cookie: int, local: tuple[str, int], remote: tuple[str, int]) -> bytes:
    """What the kernel calls a connection; addresses as text, version 4 or 6."""
    raw = [
        socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
        for address, _ in (local, remote)
    ]
    ports = struct.pack(">HH", local[1], remote[1])
    return ports + b"".join(one.ljust(16, b"\0") for one in raw) + struct.pack("=IQ", 0, cookie)


def tcp_info(sent: int = 0, again: int = 0, received: int = 0, **others: int) -> bytes:
    """Struct tcp_info as Linux 6.18 has it; what is not named is 0."""
    raw = bytearray(232)
    offsets = {"rtt": 68, "total_retrans": 100, "min_rtt": 148}
    long_offsets = {"busy": 168, "window": 176, "buffer": 184}
    for name, value in others.items():
        if name in offsets:
            struct.pack_into("=I", raw, offsets[name], value)
        else:
            struct.pack_into("=Q", raw, long_offsets[name], value)
    struct.pack_into("=Q", raw, 128, received)
    struct.pack_into("=QQ", raw, 200, sent, again)
    return bytes(raw)


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute with its header."""
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + bytes(-length % 4)


def connection(
    identity_: bytes,
    inode: int,
    info: bytes | None,
    *,
    state: int = 1,
    sequence: int = 1,
    flags: int = 2,
    family: int = socket.AF_INET,
) -> bytes:
    """One connection as a dump or a look-up tells it; INET_DIAG_SHUTDOWN comes before the record."""
    payload = bytes([family, state, 0, 0]) + identity_ + struct.pack("=IIIII", 0, 0, 0, 0, inode)
    payload += attribute(8, b"\0")
    if info is not None:
        payload += attribute(2, info)
    return message(BY_FAMILY, payload, sequence, flags)


def error(number: int, sequence: int = 1) -> bytes:
    """The answer to a question that has none."""
    return message(ERROR, struct.pack("=i", -number), sequence)


def done(sequence: int = 1, flags: int = 2) -> bytes:
    """The end of a dump."""
    return message(DONE, struct.pack("=i", 0), sequence, flags)


class FakeKernel:
    """Answers each question by the next of its scripts: datagrams whose sequence numbers count from the question's.

    Args:
        scripts: What it answers, after the probe's question.
    """

    def __init__(self, *scripts: Iterable[bytes]) -> None:
        self.questions: list[bytes] = []
        self.is_closed = False
        self._scripts = deque([(done(),), *scripts])
        self._waiting: deque[bytes] = deque()

    def send(self, data: bytes) -> int:
        """Take a question."""
        self.questions.append(data)
        first = HEADER.unpack_from(data)[3]
        for datagram in self._scripts.popleft() if self._scripts else ():
            self._waiting.append(_renumbered(datagram, first))
        return len(data)

    def recv(self, size: int) -> bytes:
        """Give the next datagram."""
        if not self._waiting:
            raise BlockingIOError
        return self._waiting.popleft()[:size]

    def close(self) -> None:
        """Close it."""
        self.is_closed = True


def _renumbered(datagram: bytes, first: int) -> bytes:
    """Sequence number 1 means the question's first, 2 the next; what is no message stays as it is."""
    raw, offset = bytearray(datagram), 0
    while offset + HEADER.size <= len(raw):
        length, _, _, sequence, _ = HEADER.unpack_from(raw, offset)
        struct.pack_into("=I", raw, offset + 8, first + sequence - 1)
        if length < HEADER.size:
            break
        offset += (length + 3) & ~3
    return bytes(raw)
