"""Connections from bytes: what the kernel writes, what it might, and what nobody should."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.ebpf import inet_diag
from rootwalk.ebpf.inet_diag import (
    Connection,
    ConnectionInfo,
    TcpState,
    decode_connection,
    decode_inode,
    split_messages,
)
from rootwalk.instrumentation.errors import DecodeError
from support import diag_messages as made

WHO = made.identity(77, ("10.0.0.1", 40_000), ("10.0.0.2", 443))
INFO = made.tcp_info(
    1009, 13, 997, rtt=250, total_retrans=2, min_rtt=90, busy=5000, window=300, buffer=70
)
MESSAGE = made.connection(WHO, 4711, INFO)


def test_sizes_are_the_kernels() -> None:
    # struct nlmsghdr, inet_diag_req_v2, inet_diag_msg; tcp_info up to bytes_retrans.
    sizes = [
        part.size
        for part in (inet_diag.HEADER, inet_diag.REQUEST, inet_diag.MESSAGE, inet_diag.INFO)
    ]
    assert sizes == [16, 56, 72, 216]


def test_connection() -> None:
    info = ConnectionInfo(250, 2, 997, 90, 5000, 300, 70, 1009, 13)
    found = decode_connection(MESSAGE, 0, len(MESSAGE))
    assert found == Connection(socket.AF_INET, TcpState.ESTABLISHED, WHO, 4711, info)
    assert found.cookie == (77).to_bytes(8, "little")
    assert decode_inode(MESSAGE, 0, len(MESSAGE)) == 4711


def test_record_of_a_newer_kernel_is_read_as_far_as_it_is_known() -> None:
    longer = made.connection(WHO, 1, INFO + bytes(64))
    assert decode_connection(longer, 0, len(longer)).info is not None


def test_record_of_an_older_kernel_is_refused() -> None:
    shorter = made.connection(WHO, 1, INFO[:200])
    with pytest.raises(DecodeError):
        decode_connection(shorter, 0, len(shorter))


def test_remains_have_no_record() -> None:
    # In the second state they keep the name of what they waited for.
    for state in (TcpState.TIME_WAIT, TcpState.FIN_WAIT2):
        remains = made.connection(WHO, 0, None, state=state)
        assert decode_connection(remains, 0, len(remains)).info is None


def test_message_that_ends_early() -> None:
    for length in range(len(MESSAGE)):
        with pytest.raises(DecodeError):
            decode_connection(MESSAGE, 0, length)


def test_messages_of_one_datagram() -> None:
    data = MESSAGE + made.error(2, 5) + made.done(7)
    kinds = [(kind, sequence) for kind, _, sequence, _, _ in split_messages(data)]
    assert kinds == [(made.BY_FAMILY, 1), (made.ERROR, 5), (made.DONE, 7)]


@pytest.mark.parametrize(
    "data",
    [b"\1", bytes(16), made.HEADER.pack(15, 20, 0, 1, 0), made.HEADER.pack(17, 20, 0, 1, 0)],
    ids=["one byte", "no length", "shorter than its header", "longer than the datagram"],
)
def test_datagram_with_an_impossible_length(data: bytes) -> None:
    with pytest.raises(DecodeError):
        list(split_messages(data))


@given(st.binary(max_size=400))
def test_no_bytes_do_harm(data: bytes) -> None:
    try:
        for _, _, _, begin, end in split_messages(data):
            decode_connection(data, begin, end)
    except DecodeError:
        pass


@given(st.integers(0, len(MESSAGE) - 1), st.integers(0, 255))
def test_no_changed_byte_does_harm(place: int, value: int) -> None:
    data = bytearray(MESSAGE)
    data[place] = value
    test_no_bytes_do_harm.hypothesis.inner_test(bytes(data))  # type: ignore[attr-defined]
