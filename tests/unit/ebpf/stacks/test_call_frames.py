"""Programs of call frame information, each with the rules it comes to."""

from __future__ import annotations

import struct

import pytest

from rootwalk.ebpf.stacks.unwind_rules import (
    END,
    NO_TABLE,
    UNFOLLOWED,
    Cfa,
    Kept,
    Rule,
)
from support.unwind_files import (
    AARCH64,
    X86_64,
    Function,
)
from support.unwind_truth import read_all_ways

ENTRY = Rule(Cfa.STACK, 8, Kept.SAME, 0, Kept.AT_CFA, -8)
LEAF = Rule(Cfa.STACK, 0)
# push %rbp; mov %rsp, %rbp; ...; leave
WITH_FRAME = bytes([0x41, 0x0E, 16, 0x86, 2, 0x43, 0x0D, 6, 0x4A, 0x0C, 7, 8])
PLT = bytes.fromhex("0e10 46 0e18 4a 0f0b 770880003f1a3b2a332422")
# As GCC writes where it aligns the stack: lea 8(%rsp), %r10 and so on.
ALIGNED = bytes.fromhex("45 0c0a00 49 10060276 00 45 0f0376 7806")


def rules(program: bytes, machine: int = X86_64, size: int = 100) -> dict[int, Rule]:
    """The rules of one function, by place in it."""
    rows = read_all_ways([Function(0x1000, size, program)], machine)
    assert rows.pop() == (0x1000 + size, NO_TABLE)
    return {row.at - 0x1000: row.rule for row in rows}


def test_a_function_with_a_frame_pointer() -> None:
    saved = Kept.AT_CFA, -16, Kept.AT_CFA, -8
    assert rules(WITH_FRAME) == {
        0: ENTRY,
        1: Rule(Cfa.STACK, 16, *saved),
        4: Rule(Cfa.FRAME, 16, *saved),
        14: Rule(Cfa.STACK, 8, *saved),
    }


def test_states_are_remembered_in_each_other() -> None:
    program = bytes.fromhex("41 0e10 42 0a 0e18 43 0a 0e20 44 0b 41 0b 41 0e08")
    assert [(at, rule.cfa_offset) for at, rule in rules(program).items()] == [
        (0, 8),
        (1, 16),
        (3, 24),
        (6, 32),
        (10, 24),
        (11, 16),
        (12, 8),
    ]


def test_an_advance_of_nothing_tells_no_row() -> None:
    program = bytes.fromhex("41 0e10 40 0e18 0200 0e20")
    assert [(at, rule.cfa_offset) for at, rule in rules(program).items()] == [(0, 8), (1, 32)]


def test_places_are_told_in_all_widths() -> None:
    program = bytes.fromhex("0205 0e10 030001 0e18 0400000100 0e20 01") + struct.pack(
        # set_loc, relative to its own place: after a record's head of 8, start and size of 8, skipped bytes of 1
        "<i",
        0x1000 + 0x20000 - (0x9000 + 24 + 17 + 17),
    )
    found = rules(program + b"\x0e\x28", size=0x30000)
    assert [(at, rule.cfa_offset) for at, rule in found.items()] == [
        (0, 8),
        (5, 16),
        (0x105, 24),
        (0x10105, 32),
        (0x20000, 40),
    ]


@pytest.mark.parametrize(
    ("program", "frame"),
    [
        ("050602", (Kept.AT_CFA, -16)),  # offset_extended
        ("11067e", (Kept.AT_CFA, 16)),  # offset_extended_sf
        ("2f0602", (Kept.AT_CFA, 16)),  # GNU_negative_offset_extended
        ("8602 c6", (Kept.SAME, 0)),  # restore
        ("8602 0606", (Kept.SAME, 0)),  # restore_extended
        ("8602 0806", (Kept.SAME, 0)),  # same_value
        ("0706", (Kept.UNDEFINED, 0)),  # undefined
        ("090603", (Kept.UNSUPPORTED, 0)),  # register
        ("140602", (Kept.UNSUPPORTED, 0)),  # val_offset
        ("15067e", (Kept.UNSUPPORTED, 0)),  # val_offset_sf
        ("1006027668", (Kept.AT_FRAME, -24)),  # expression
        ("1006027768", (Kept.UNSUPPORTED, 0)),  # expression of rsp
        ("1606027668", (Kept.UNSUPPORTED, 0)),  # val_expression
        ("8c02 2e10 00", (Kept.SAME, 0)),  # another register; GNU_args_size; nop
    ],
)
def test_the_frame_pointer_is_kept(program: str, frame: tuple[Kept, int]) -> None:
    assert rules(bytes.fromhex(program)) == {0: Rule(Cfa.STACK, 8, *frame, Kept.AT_CFA, -8)}


@pytest.mark.parametrize(
    ("program", "cfa"),
    [
        ("0c0718", (Cfa.STACK, 24)),  # def_cfa
        ("0c0600", (Cfa.FRAME, 0)),
        ("12077d", (Cfa.STACK, 24)),  # def_cfa_sf
        ("137d", (Cfa.STACK, 24)),  # def_cfa_offset_sf
        ("0ec0843d", (Cfa.STACK, 1_000_000)),  # def_cfa_offset
        ("0f037668 06", (Cfa.AT_FRAME, -24)),  # def_cfa_expression
    ],
)
def test_the_cfa_is_defined(program: str, cfa: tuple[Cfa, int]) -> None:
    (rule,) = rules(bytes.fromhex(program)).values()
    assert (rule.cfa, rule.cfa_offset) == cfa


@pytest.mark.parametrize(
    "program",
    [
        "0c0a00",  # of r10
        "0f037768 06",  # loaded from rsp + offset
        "0f037768 06 0e10",  # an offset to no register
        "0f037768 06 0d07",
        "0effffffff7f",  # 35 bits
        "9002",  # the return address elsewhere
        "091003",  # the return address in a register
        "0810",
    ],
)
def test_what_is_not_followed_is_told_as_such(program: str) -> None:
    assert rules(bytes.fromhex(program)) == {0: UNFOLLOWED}


def test_the_entries_of_a_plt() -> None:
    found = rules(PLT, size=64)
    assert found[16] == Rule(Cfa.PLT, 11, Kept.SAME, 0, Kept.AT_CFA, -8)
    assert [rule.cfa_offset for rule in found.values()] == [16, 24, 11]


def test_a_function_that_aligns_its_stack() -> None:
    found = list(rules(ALIGNED).items())
    assert found[1] == (5, UNFOLLOWED)
    assert found[-1] == (19, Rule(Cfa.AT_FRAME, -8, Kept.AT_FRAME, 0, Kept.AT_CFA, -8))


def test_the_stack_ends_where_nobody_called() -> None:
    assert rules(b"\x07\x10") == {0: END}
    assert rules(b"\x07\x1e", AARCH64) == {0: END}


def test_a_function_of_arm64() -> None:
    # stp x29, x30, [sp, #-32]!; mov x29, sp; ...; ldp; with the return address signed
    program = bytes.fromhex("2d 44 0e20 9d04 9e03 44 0d1d 50 0c1f20 44 de dd 0e00")
    saved = Kept.AT_CFA, -32, Kept.AT_CFA, -24
    assert rules(program, AARCH64) == {
        0: LEAF,
        4: Rule(Cfa.STACK, 32, *saved),
        8: Rule(Cfa.FRAME, 32, *saved),
        24: Rule(Cfa.STACK, 32, *saved),
        28: LEAF,
    }
