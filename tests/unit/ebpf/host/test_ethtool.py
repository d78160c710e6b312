"""Answers of the kernel to ethtool's call, made by hand after its header."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from rootwalk.ebpf.host.ethtool import (
    NAMES_HEAD,
    REQUEST,
    SET_INFO,
    VALUES_HEAD,
    Ethtool,
    decode_names,
    decode_values,
)


def test_layouts_are_the_kernels() -> None:
    # struct ifreq, and the fixed parts of ethtool_gstrings, ethtool_stats and ethtool_sset_info with one count.
    assert (REQUEST.size, NAMES_HEAD.size, VALUES_HEAD.size, SET_INFO.size) == (40, 12, 8, 20)


def test_names_and_values() -> None:
    names = [b"rx_pause", b"tx_prio3_pause_duration", b"na\xefve", b"x" * 32]
    answer = struct.pack("=III", 0x1B, 1, len(names)) + b"".join(
        name.ljust(32, b"\0") for name in names
    )
    spare = bytes(64)
    assert decode_names(answer + spare) == [
        "rx_pause",
        "tx_prio3_pause_duration",
        "na\ufffdve",
        "x" * 32,
    ]
    values = [0, 1, 2**64 - 1]
    assert decode_values(struct.pack("=II3Q", 0x1D, 3, *values) + spare) == values


def test_answer_with_fewer_than_it_promises() -> None:
    assert decode_values(struct.pack("=IIQ", 0x1D, 1000, 5)) == [5]
    assert len(decode_names(struct.pack("=III", 0x1B, 1, 1000) + bytes(32))) == 1


@given(st.binary(min_size=12, max_size=200))
def test_garbage_raises_nothing(answer: bytes) -> None:
    decode_names(answer)
    decode_values(answer)


def test_interface_that_is_not_there_tells_nothing() -> None:
    ethtool = Ethtool()
    assert ethtool.read("no-such-one") == {}
    assert ethtool.read("a-name-that-no-interface-can-have") == {}
    assert ethtool.read("lo") == {}  # its driver counts nothing
    ethtool.close()
    ethtool.close()
