"""Small ELF files with an `.eh_frame` made by hand: what a compiler would write, and what none would."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

X86_64, AARCH64 = 62, 183
FIRST_CFI = {
    X86_64: bytes([0x0C, 7, 8, 0x90, 1]),  # CFA = rsp + 8, return address at CFA - 8
    AARCH64: bytes([0x0C, 31, 0]),  # CFA = sp
}
CODE, INDEX, FRAMES = 0x1000, 0x8000, 0x9000
HEADERS = 0x400


class Function(NamedTuple):
    """A function and its program.

    Attributes:
        start: First address.
        size: Bytes.
        program: Its instructions.
    """

    start: int
    size: int
    program: bytes = b""


def length_of(data: bytes) -> bytes:
    padded = data + bytes(-len(data) % 4)
    return struct.pack("<I", len(padded)) + padded


def make_frames(
    functions: list[Function],
    machine: int = X86_64,
    first: bytes | None = None,
    augmentation: bytes = b"zR",
    augmented: bytes = b"\x1b",
) -> tuple[bytes, list[tuple[int, int]]]:
    """Return an .eh_frame and, of each function, its address and that of its entry."""
    back = 16 if machine == X86_64 else 30
    extra = bytes([len(augmented)]) + augmented if augmentation[:1] == b"z" else b""
    cie = bytes([1]) + augmentation + b"\0" + bytes([1, 0x78, back]) + extra
    out = length_of(bytes(4) + cie + (FIRST_CFI[machine] if first is None else first))
    entries = []
    for one in functions:
        entries.append((one.start, FRAMES + len(out)))
        near = struct.pack("<ii", one.start - (FRAMES + len(out) + 8), one.size)
        where = struct.pack("<I", len(out) + 4)
        skipped = b"\0" if extra else b""
        out += length_of(where + near + skipped + one.program)
    return out + bytes(4), entries


def make_index(entries: list[tuple[int, int]], count: int | None = None) -> bytes:
    """Return an .eh_frame_hdr."""
    pairs = b"".join(struct.pack("<ii", a - INDEX, b - INDEX) for a, b in sorted(entries))
    said = len(entries) if count is None else count
    return struct.pack("<4BiI", 1, 0x1B, 3, 0x3B, FRAMES - INDEX - 4, said) + pairs


def make_file(
    frames: bytes, index: bytes | None, machine: int = X86_64, has_sections: bool = True
) -> bytes:
    """Return a file that holds them where their addresses say; its places are its addresses, less 0x7000."""
    names = b"\0.eh_frame\0.names\0"
    shift = INDEX - HEADERS
    frames_at = FRAMES - shift
    names_at = frames_at + len(frames)
    sections_at = names_at + len(names)
    loaded = len(frames) + frames_at - HEADERS
    segments = [struct.pack("<IIQQQQQQ", 1, 4, HEADERS, INDEX, INDEX, loaded, loaded, 4096)]
    if index is not None:
        size = len(index)
        segments.append(
            struct.pack("<IIQQQQQQ", 0x6474E550, 4, HEADERS, INDEX, INDEX, size, size, 4)
        )
    sections = [
        bytes(64),
        struct.pack("<IIQQQQIIQQ", 1, 1, 2, FRAMES, frames_at, len(frames), 0, 0, 8, 0),
        struct.pack("<IIQQQQIIQQ", 11, 3, 0, 0, names_at, len(names), 0, 0, 1, 0),
    ]
    if not has_sections:
        sections, sections_at = [], 0
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH",
        3,
        machine,
        1,
        0,
        64,
        sections_at,
        0,
        64,
        56,
        len(segments),
        64,
        len(sections),
        2 if sections else 0,
    )
    out = (head + b"".join(segments)).ljust(HEADERS, b"\0") + (index or b"")
    return out.ljust(frames_at, b"\0") + frames + names + b"".join(sections)


@contextmanager
def opened(data: bytes) -> Iterator[BinaryIO]:
    descriptor = os.memfd_create("elf")
    os.write(descriptor, data)
    with os.fdopen(descriptor, "rb") as file:
        yield file
