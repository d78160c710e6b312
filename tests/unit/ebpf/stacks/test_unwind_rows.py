"""Unwinding rows: what small files made by hand say, what real ones say, and what damaged ones cannot do to us."""

from __future__ import annotations

import shutil
import struct
import sys
import sysconfig
import time
import tracemalloc
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.ebpf.stacks.unwind_rows import FunctionRows, UnwindTable
from rootwalk.ebpf.stacks.unwind_rules import (
    NO_TABLE,
    UNFOLLOWED,
    Cfa,
    Kept,
    Row,
    Rule,
)
from rootwalk.instrumentation.errors import DecodeError
from support.examples import examples
from support.unwind_files import (
    Function,
    make_file,
    make_frames,
    make_index,
    opened,
)
from support.unwind_truth import disagreements, read_all_ways

ENTRY = Rule(Cfa.STACK, 8, Kept.SAME, 0, Kept.AT_CFA, -8)
LEAF = Rule(Cfa.STACK, 0)
# push %rbp; mov %rsp, %rbp; ...; leave
WITH_FRAME = bytes([0x41, 0x0E, 16, 0x86, 2, 0x43, 0x0D, 6, 0x4A, 0x0C, 7, 8])
PLT = bytes.fromhex("0e10 46 0e18 4a 0f0b 770880003f1a3b2a332422")
# As GCC writes where it aligns the stack: lea 8(%rsp), %r10 and so on.
ALIGNED = bytes.fromhex("45 0c0a00 49 10060276 00 45 0f0376 7806")


def test_gaps_are_told_and_equal_neighbours_are_one() -> None:
    functions = [Function(0x1000, 16), Function(0x1010, 16), Function(0x1040, 16)]
    assert read_all_ways(functions) == [
        Row(0x1000, ENTRY),
        Row(0x1020, NO_TABLE),
        Row(0x1040, ENTRY),
        Row(0x1050, NO_TABLE),
    ]
    frames, entries = make_frames(functions)
    with opened(make_file(frames, make_index(entries))) as file:
        table = UnwindTable(file)
        assert table.find(0xFFF) == FunctionRows(0, 0x1000, [Row(0, NO_TABLE)])
        assert table.find(0x1020) == FunctionRows(0x1020, 0x1040, [Row(0x1020, NO_TABLE)])
        assert table.find(0x9999) == FunctionRows(0x1050, 1 << 64, [Row(0x1050, NO_TABLE)])


def test_functions_that_lie_in_each_other_are_cut() -> None:
    frames, entries = make_frames([Function(0x1000, 0x100, WITH_FRAME), Function(0x1002, 16)])
    with opened(make_file(frames, make_index(entries))) as file:
        table = UnwindTable(file)
        assert [row.at for row in table.rows()] == [0x1000, 0x1001, 0x1002, 0x1012]
        assert table.find(0x1050).rows == [Row(0x1012, NO_TABLE)]
        assert table.damaged == 0


@pytest.mark.parametrize(
    "program",
    [
        b"\x0b",  # restore_state of nothing
        b"\x0a" * 65,
        b"\x0e" + b"\xff" * 40,  # a number without end
        b"\x0f\xff\xff\x03\x70",  # an expression beyond the end
        b"\x10\x06\x40\x70",
        b"\x3f",  # no instruction
        b"\x2d",  # of another architecture
        b"\x00\x00\x04",  # cut off
    ],
)
def test_damaged_programs_cost_only_their_function(program: bytes) -> None:
    # So that nothing pads it: the last instruction is at the end of an entry.
    program = bytes(-(17 + len(program) + 4) % 4) + program
    functions = [Function(0x1000, 16), Function(0x1010, 16, program), Function(0x1020, 16)]
    frames, entries = make_frames(functions)
    with opened(make_file(frames, make_index(entries))) as file:
        table = UnwindTable(file)
        expected = [Row(0x1000, ENTRY), Row(0x1010, UNFOLLOWED), Row(0x1020, ENTRY)]
        assert list(table.rows()) == [*expected, Row(0x1030, NO_TABLE)]
        assert table.find(0x1018) == FunctionRows(0x1010, 0x1020, [expected[1]])
        assert table.damaged == 2


def test_an_index_that_lies_is_not_believed() -> None:
    functions = [Function(0x1000 + n * 16, 16, WITH_FRAME) for n in range(8)]
    frames, entries = make_frames(functions)
    moved = [(start + 1, where) for start, where in entries]
    with opened(make_file(frames, make_index(moved))) as file:
        table = UnwindTable(file)
        assert {row.rule for row in table.rows()} == {UNFOLLOWED}
        assert table.damaged == 8
    for count in (0, 9, 1 << 20, 0xFFFFFFFF):  # it is not taken, and the entries are read
        with opened(make_file(frames, make_index(entries, count))) as file:
            assert len(list(UnwindTable(file).rows())) == 8 * 4 + 1
    same = [(0x1000, entries[0][1])] * 100
    with opened(make_file(frames, make_index(same))) as file:
        table = UnwindTable(file)
        assert len(list(table.rows())) == 5
        assert table.damaged == 99


def test_entries_that_lie_in_each_other_end() -> None:
    """Each of many places holds a record whose program is nearly the whole section."""
    functions = [Function(0x1000 + n, 1, b"\x2e\x01" * 10) for n in range(400)]
    frames, entries = make_frames(functions)
    forged = bytearray(frames)
    for _, where in entries:
        at = where - 0x9000
        forged[at : at + 4] = struct.pack("<I", len(frames) - at - 8)
    data = make_file(bytes(forged), make_index(entries))
    with opened(data) as file, pytest.raises(DecodeError, match="lie in each other"):
        list(UnwindTable(file).rows())


@pytest.mark.parametrize(
    ("augmentation", "augmented", "is_read"),
    [
        (b"zRS", b"\x1b", True),
        (b"zRB", b"\x1b", True),
        (b"zPLR", b"\x9b\x11\x22\x33\x44\x1b\x1b", True),
        (b"zPR", b"\x50\x11\x22\x33\x44\x1b", False),
        (b"zQR", b"\x1b", False),
        (b"eh", b"", False),
        (b"zR", b"\x9b", False),  # indirect
        (b"zR", b"\x2b", False),  # relative to text
        (b"zR", b"", False),
    ],
)
def test_augmentations(augmentation: bytes, augmented: bytes, is_read: bool) -> None:
    frames, entries = make_frames(
        [Function(0x1000, 16)], augmentation=augmentation, augmented=augmented
    )
    with opened(make_file(frames, make_index(entries))) as file:
        assert next(UnwindTable(file).rows()).rule == (ENTRY if is_read else UNFOLLOWED)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "saw 64 bytes at 0 of 0"),
        (make_file(b"", None), "no .eh_frame"),
        (make_file(bytes(64), None, machine=243), "machine 243"),
        (make_file(b"\xff" * 64, None), "an entry of"),
    ],
)
def test_files_without_a_table_are_refused(data: bytes, text: str) -> None:
    with opened(data) as file, pytest.raises(DecodeError, match=text):
        UnwindTable(file)


def real_files() -> list[Path]:
    """What this interpreter is made of: its program or library, the C library, an extension module."""
    library = Path(sysconfig.get_config_var("LIBDIR") or "/") / str(
        sysconfig.get_config_var("INSTSONAME")
    )
    with Path("/proc/self/maps").open() as lines:
        mapped = {line.split()[-1] for line in lines if line.rstrip().endswith(".so.6")}
    found = [
        one
        for one in (library, Path(sys.executable).resolve(), *map(Path, mapped))
        if one.is_file()
    ]
    return list(dict.fromkeys(found))


def test_real_files_say_what_readelf_says() -> None:
    if shutil.which("readelf") is None:
        pytest.skip("interpreter: needs readelf")
    compared = 0
    for path in real_files():
        number, found = disagreements(path, every=7)
        assert found == [], path
        compared += number
    assert compared > 1000


def test_reading_a_real_file_takes_little_memory() -> None:
    path = max(real_files(), key=lambda one: one.stat().st_size)
    tracemalloc.start()
    with path.open("rb") as file:
        number = sum(1 for _ in UnwindTable(file).rows())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert number > 10_000
    assert peak < 2_000_000


@cache
def small_file() -> bytes:
    functions = [
        Function(0x1000, 40, WITH_FRAME),
        Function(0x1028, 40, ALIGNED),
        Function(0x1050, 64, PLT),
        Function(0x1100, 300, bytes.fromhex("41 0e10 42 0a 0e18 43 0b 02f0 0effff03")),
    ]
    frames, entries = make_frames(functions)
    return make_file(frames, make_index(entries))


BYTES = [n for n, byte in enumerate(small_file()) if byte]


@examples(3)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(BYTES) | st.integers(0, len(small_file()) - 1), st.integers(0, 255)
        ),
        max_size=6,
    ),
    st.none() | st.integers(0, len(small_file())),
)
def test_damaged_files_end_in_rows_or_an_error(
    changes: list[tuple[int, int]], cut: int | None
) -> None:
    data = bytearray(small_file())
    for at, byte in changes:
        data[at] = byte
    began_s = time.monotonic()
    with opened(bytes(data[:cut])) as file:
        try:
            table = UnwindTable(file)
            rows = list(table.rows())
            assert all(a.at < b.at for a, b in pairwise(rows))
            for pc in (0, 0x1001, 0x1030, 0x1060, 0x1110, 0x1400, (1 << 64) - 1):
                one = table.find(pc)
                assert one.start <= pc < one.end
                assert one.rows[0].at == one.start
        except DecodeError:
            pass
    assert time.monotonic() - began_s < 1.0
