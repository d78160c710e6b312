"""Answers of rtnetlink about links, made by hand."""

from __future__ import annotations

import struct

import pytest

from rootwalk.ebpf.host.net_links import decode_changes

ABOUT = bytes(16)


def attribute(kind: int, value: bytes) -> bytes:
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + bytes(-length % 4)


NAME, CHANGES = attribute(3, b"eth0\0"), attribute(35, struct.pack("=I", 17))


def test_name_and_changes_among_others() -> None:
    others = attribute(4, struct.pack("=I", 1500)), attribute(26, bytes(7))
    assert decode_changes(ABOUT + others[0] + NAME + others[1] + CHANGES) == {"eth0": 17}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        ABOUT,
        ABOUT + NAME,  # a kernel that does not tell
        ABOUT + CHANGES,
        ABOUT + NAME + attribute(35, bytes(2)),
        ABOUT + NAME + struct.pack("=HH", 400, 35),
        ABOUT + NAME + struct.pack("=HH", 0, 35) + CHANGES,
    ],
)
def test_what_is_not_told_or_cut_off_is_missing(body: bytes) -> None:
    assert decode_changes(body) == {}
