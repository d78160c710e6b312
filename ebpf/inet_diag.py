"""One TCP connection as the kernel's diagnosis interface writes it: bytes to records and back.

A message is struct nlmsghdr, struct inet_diag_msg, then attributes of which one holds struct tcp_info. What is shorter
than it claims is refused, what is longer (a newer kernel) is read as far as it is known. Pure.

Source:
    include/uapi/linux/{netlink,sock_diag,inet_diag,tcp}.h, checked on 6.18; all fields are there since 4.19.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from rootwalk.instrumentation.errors import DecodeError

__all__ = [
    "Connection",
    "ConnectionInfo",
    "TcpState",
    "build_request",
    "decode_connection",
    "decode_error",
    "decode_inode",
    "split_messages",
]

SOCK_DIAG_BY_FAMILY = 20
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP, NLM_F_DUMP_INTR = 0x1, 0x300, 0x10
INET_DIAG_INFO = 2

HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
REQUEST = struct.Struct(
    "=BBBxI48s"
)  # struct inet_diag_req_v2: family, protocol, extensions, states, identity
MESSAGE = struct.Struct("=BBxx48s16xI")  # struct inet_diag_msg: family, state, identity, inode
ATTRIBUTE = struct.Struct("=HH")  # struct nlattr: length, type
ERROR = struct.Struct("=i")
# struct tcp_info: rtt 68, total_retrans 100, bytes_received 128, min_rtt 148, busy_time 168, rwnd_limited 176,
# sndbuf_limited 184, bytes_sent 200, bytes_retrans 208.
INFO = struct.Struct("=68xI28xI24xQ12xI16xQQQ8xQQ")
INODE_OFFSET = HEADER.size + MESSAGE.size - 4
INODE = struct.Struct("=I")
COOKIE = slice(40, 48)  # of the identity


class TcpState(IntEnum):
    """State of a connection, as the kernel numbers it."""

    ESTABLISHED = 1
    SYN_SENT = 2
    SYN_RECEIVED = 3
    FIN_WAIT1 = 4
    FIN_WAIT2 = 5
    TIME_WAIT = 6
    CLOSED = 7
    CLOSE_WAIT = 8
    LAST_ACK = 9
    LISTEN = 10
    CLOSING = 11
    NEW_SYN_RECEIVED = 12


# What remains of a connection, in the state that it was in, and what is not yet one.
WITHOUT_RECORD = frozenset(
    {TcpState.TIME_WAIT, TcpState.FIN_WAIT2, TcpState.SYN_RECEIVED, TcpState.NEW_SYN_RECEIVED}
)


class ConnectionInfo(NamedTuple):
    """What the kernel counts for one connection since its beginning; times in us.

    `sent_bytes` counts a byte again each time that it is sent again; `busy_us` covers both limited times.
    """

    rtt_us: int
    retransmitted_segments: int
    received_bytes: int
    min_rtt_us: int
    busy_us: int
    window_limited_us: int
    buffer_limited_us: int
    sent_bytes: int
    retransmitted_bytes: int


class Connection(NamedTuple):
    """One end of a connection.

    Attributes:
        family: AF_INET or AF_INET6.
        state: A `TcpState`.
        identity: struct inet_diag_sockid: ports, addresses, interface, cookie; what a look-up asks for.
        inode: Of the socket; 0 when no process holds it any more.
        info: None for what remains of a connection that has ended.
    """

    family: int
    state: int
    identity: bytes
    inode: int
    info: ConnectionInfo | None

    @property
    def cookie(self) -> bytes:
        """Return what no other socket has, had or will have until the next boot."""
        return self.identity[COOKIE]


def split_messages(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield type, flags, sequence number, begin and end of each message of one datagram.

    Raises:
        DecodeError: If a length is not possible.
    """
    offset = 0
    while offset < len(data):
        if offset + HEADER.size > len(data):
            raise DecodeError(f"cannot read a netlink message: saw {len(data) - offset} bytes left")
        length, kind, flags, sequence, _ = HEADER.unpack_from(data, offset)
        if length < HEADER.size or offset + length > len(data):
            raise DecodeError(f"cannot read a netlink message: saw a length of {length}")
        yield kind, flags, sequence, offset, offset + length
        offset += (length + 3) & ~3


def decode_connection(data: bytes, begin: int, end: int) -> Connection:
    """Return the connection of one message.

    Args:
        data: The datagram.
        begin: Where the message begins, its header included.
        end: Where it ends.

    Raises:
        DecodeError: If it is too short, its attributes are not possible, or there is no record where one belongs.
    """
    offset = begin + HEADER.size
    if offset + MESSAGE.size > end:
        raise DecodeError(f"cannot read a connection: saw {end - begin} bytes")
    family, state, identity, inode = MESSAGE.unpack_from(data, offset)
    offset += MESSAGE.size
    info = None
    while offset + ATTRIBUTE.size <= end:
        length, kind = ATTRIBUTE.unpack_from(data, offset)
        if length < ATTRIBUTE.size or offset + length > end:
            raise DecodeError(f"cannot read a connection: saw an attribute of {length} bytes")
        if kind == INET_DIAG_INFO:
            if length - ATTRIBUTE.size < INFO.size:
                raise DecodeError(f"cannot read a connection: saw a record of {length} bytes")
            info = ConnectionInfo(*INFO.unpack_from(data, offset + ATTRIBUTE.size))
            break
        offset += (length + 3) & ~3
    if info is None and state not in WITHOUT_RECORD:
        raise DecodeError(f"cannot read a connection: saw no record of one in state {state}")
    return Connection(family, state, identity, inode, info)


def decode_inode(data: bytes, begin: int, end: int) -> int:
    """Return the inode of one message's socket, cheaper than all of it.

    Raises:
        DecodeError: If it is too short.
    """
    if end - begin < HEADER.size + MESSAGE.size:
        raise DecodeError(f"cannot read a connection: saw {end - begin} bytes")
    inode: int = INODE.unpack_from(data, begin + INODE_OFFSET)[0]
    return inode


def decode_error(data: bytes, begin: int, end: int) -> int:
    """Return the error number of an error message, positive; 0 when it is too short."""
    offset = begin + HEADER.size
    return -int(ERROR.unpack_from(data, offset)[0]) if offset + ERROR.size <= end else 0


def build_request(
    family: int, flags: int, sequence: int, states: int = 0, identity: bytes = b""
) -> bytes:
    """Return one question.

    Args:
        family: AF_INET or AF_INET6.
        flags: NLM_F_DUMP for all connections.
        sequence: Comes back in the answers.
        states: Of a dump: one bit for each `TcpState`.
        identity: Of a look-up.
    """
    body = REQUEST.pack(
        family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), states, identity.ljust(48, b"\0")
    )
    length = HEADER.size + len(body)
    return HEADER.pack(length, SOCK_DIAG_BY_FAMILY, flags, sequence, 0) + body
