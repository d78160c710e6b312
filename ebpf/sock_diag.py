"""Asks the kernel for TCP connections (NETLINK_SOCK_DIAG, what `ss` reads).

    dump      every connection of one network namespace, whoever owns it     when sockets have come
    look_up   connections that are known already, by their cookie            what they have moved since
    ended     the last values of connections that have ended                 so that nothing of them is lost

Counts: what the kernel keeps for each connection since its beginning, with no program in any path. Not: time-wait
remains, which have no such record; UDP. Needs no privilege in the network namespace of this thread. Knows no process:
a socket is an inode here.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.inet_diag import (
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    SOCK_DIAG_BY_FAMILY,
    Connection,
    TcpState,
    build_request,
    decode_connection,
    decode_error,
    decode_inode,
    split_messages,
)
from rootwalk.instrumentation.errors import DecodeError, UnavailableError

__all__ = ["Answers", "DiagSocket", "EndedSocket", "Netlink"]

NETLINK_SOCK_DIAG = 4
SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, NETLINK_DROP_MEMBERSHIP = 270, 1, 2
DESTROYED_GROUPS = (1, 3)  # SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_TCP_DESTROY
FAMILIES = (socket.AF_INET, socket.AF_INET6)
# A dump fills datagrams of at most 32 KiB when it is read with this much room.
RECEIVE_BYTES = 65_536
# Answers of one batch wait in the socket's buffer: each takes a kilobyte of its 200, headers included.
BATCH = 64
# A thousand connections or so that end between two looks; the kernel drops what is more, and says so.
ENDED_BUFFER_BYTES = 1 << 20
# A host whose connections end faster than that is a busy server: hearing of them would cost more than it tells.
PAUSED_READS = 30
# Nothing has these ends, or something that came later has them.
GONE_ERRORS = frozenset({errno.ENOENT, errno.ESTALE})
# Listeners move no data, and remains of connections have no record.
DUMPED_STATES = sum(
    1 << state
    for state in TcpState
    if state not in (TcpState.LISTEN, TcpState.TIME_WAIT, TcpState.NEW_SYN_RECEIVED)
)


class Answers(NamedTuple):
    """What one question brought.

    Attributes:
        connections: What was asked for.
        seen: How many the kernel told of, those included that were not asked for.
        gone: Positions of those that do not exist any more; of a look-up only.
        is_complete: False when something may be missing.
    """

    connections: list[Connection]
    seen: int
    gone: list[int]
    is_complete: bool


class Netlink(Protocol):
    """The part of a netlink socket that is used; it never blocks."""

    def send(self, data: bytes, /) -> int:
        """Ask; the kernel has begun to answer when it returns."""

    def recv(self, size: int, /) -> bytes:
        """Return one datagram; raises OSError when there is none, or when some were lost."""

    def close(self) -> None:
        """Close it; safe twice."""


def open_netlink() -> socket.socket:
    """Open a socket in the network namespace of this thread.

    Raises:
        OSError: If the kernel does not have the protocol.
    """
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
    opened.setblocking(False)
    return opened


class DiagSocket:
    """Asks for connections in the network namespace of the thread that opens it.

    Args:
        open_socket: Opens what it asks with.

    Raises:
        UnavailableError: NO_INET_DIAG.
    """

    def __init__(self, open_socket: Callable[[], Netlink] = open_netlink) -> None:
        self.malformed = 0
        self._sequence = 0
        try:
            self._socket = open_socket()
        except OSError as error:
            raise _refused(error.strerror or str(error)) from error
        try:
            self._check()
        except UnavailableError:
            self.close()
            raise

    def dump(self, inodes: Container[int]) -> Answers:
        """Return the connections of some sockets, by looking at all.

        Args:
            inodes: Those that are wanted.
        """
        connections: list[Connection] = []
        seen, is_complete = 0, True
        for family in FAMILIES:
            self._sequence += 1
            flags = NLM_F_REQUEST | NLM_F_DUMP
            self._send(build_request(family, flags, self._sequence, DUMPED_STATES))
            is_done = False
            while not is_done:
                data = self._receive()
                if data is None:
                    is_complete = False
                    break
                count, is_done, is_whole = self._take_dump(data, inodes, connections)
                seen += count
                is_complete = is_complete and is_whole
        return Answers(connections, seen, [], is_complete)

    def look_up(self, known: Sequence[Connection]) -> Answers:
        """Return connections as they are now.

        Args:
            known: As they were.
        """
        connections: list[Connection] = []
        gone: list[int] = []
        answered = 0
        for first in range(0, len(known), BATCH):
            batch = known[first : first + BATCH]
            base = self._sequence + 1
            self._sequence += len(batch)
            questions = (
                build_request(one.family, NLM_F_REQUEST, base + index, 0, one.identity)
                for index, one in enumerate(batch)
            )
            self._send(b"".join(questions))
            answered_before = answered
            while answered - answered_before < len(batch):
                data = self._receive()
                if data is None:
                    break
                for kind, _, sequence, begin, end in self._messages(data):
                    index = sequence - base
                    if not 0 <= index < len(batch):
                        continue  # of a question that was given up
                    answered += 1
                    if kind == NLMSG_ERROR:
                        if decode_error(data, begin, end) in GONE_ERRORS:
                            gone.append(first + index)
                    elif kind == SOCK_DIAG_BY_FAMILY:
                        connections += self._decoded(data, begin, end)
        return Answers(connections, answered, gone, answered == len(known))

    def close(self) -> None:
        """Close the socket; safe twice."""
        self._socket.close()

    def _check(self) -> None:
        """Ask for nothing once: a kernel without the interface says so."""
        self._sequence += 1
        self._send(build_request(socket.AF_INET, NLM_F_REQUEST | NLM_F_DUMP, self._sequence))
        while (data := self._receive()) is not None:
            for kind, _, _, begin, end in self._messages(data):
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR:
                    raise _refused(f"error {decode_error(data, begin, end)}")
        raise _refused("no answer")

    def _take_dump(
        self, data: bytes, inodes: Container[int], connections: list[Connection]
    ) -> tuple[int, bool, bool]:
        """Take one datagram of a dump; return how many it had, whether it was the last, whether nothing is missing."""
        seen, is_whole = 0, True
        before = self.malformed
        for kind, flags, sequence, begin, end in self._messages(data):
            if sequence != self._sequence:
                continue  # of a dump that was given up
            is_whole = is_whole and not flags & NLM_F_DUMP_INTR
            if kind in (NLMSG_DONE, NLMSG_ERROR):
                return seen, True, is_whole and kind == NLMSG_DONE
            if kind != SOCK_DIAG_BY_FAMILY:
                continue
            seen += 1
            try:
                if decode_inode(data, begin, end) in inodes:
                    connections.append(decode_connection(data, begin, end))
            except DecodeError:
                self.malformed += 1
        return seen, False, is_whole and self.malformed == before

    def _messages(self, data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
        try:
            yield from split_messages(data)
        except DecodeError:
            self.malformed += 1

    def _decoded(self, data: bytes, begin: int, end: int) -> Iterable[Connection]:
        try:
            return (decode_connection(data, begin, end),)
        except DecodeError:
            self.malformed += 1
            return ()

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # then no answer comes, which is counted
            self._socket.send(data)

    def _receive(self) -> bytes | None:
        """Return the next datagram; None when there is none: the kernel answers before it returns from a call."""
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except OSError:
            return None


class EndedSocket:
    """Hears of connections that end in the network namespace of the thread that opens it.

    Raises:
        OSError: If the kernel refuses.
    """

    def __init__(self) -> None:
        self.malformed = 0
        self._paused = 0
        self._socket = open_netlink()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ENDED_BUFFER_BYTES)
            self._socket.bind((0, 0))  # without an address of its own it would get nothing
            self._join(NETLINK_ADD_MEMBERSHIP)
        except OSError:
            self.close()
            raise

    def read(self) -> list[Connection]:
        """Return what has ended since the last call, with its last values; not all where too much has ended."""
        if self._paused:
            self._paused -= 1
            if not self._paused:
                self._join(NETLINK_ADD_MEMBERSHIP)
            return []
        connections: list[Connection] = []
        while True:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return connections
            except OSError:  # ENOBUFS: more has ended than the buffer holds
                self._paused = PAUSED_READS
                self._join(NETLINK_DROP_MEMBERSHIP)
                continue
            try:
                for kind, _, _, begin, end in split_messages(data):
                    if kind == SOCK_DIAG_BY_FAMILY:
                        connections.append(decode_connection(data, begin, end))
            except DecodeError:
                self.malformed += 1

    def close(self) -> None:
        """Close the socket; safe twice."""
        self._socket.close()

    def _join(self, how: int) -> None:
        for group in DESTROYED_GROUPS:
            self._socket.setsockopt(SOL_NETLINK, how, group)


def _refused(saw: str) -> UnavailableError:
    return UnavailableError(
        f"cannot ask the kernel for TCP connections: saw {saw}; needs CONFIG_INET_TCP_DIAG",
        reason=Reason.NO_INET_DIAG,
        hint=Reason.NO_INET_DIAG.hint,
    )
