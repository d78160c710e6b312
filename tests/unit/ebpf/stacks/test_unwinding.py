"""Rules that are taught on demand, from notes of this process's own addresses."""

from __future__ import annotations

import ctypes
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator

import pytest

from rootwalk.ebpf.stacks.mappings import Mapping, Mappings, read_mappings
from rootwalk.ebpf.stacks.process_memory import ProcessMemory
from rootwalk.ebpf.stacks.records import (
    NO_RULE,
    RULE,
    RULES,
    WINDOW_BYTES,
    CfaKind,
    Note,
    UnwindRule,
    pack_window,
)
from rootwalk.ebpf.stacks.unwind_rows import UnwindTable
from rootwalk.ebpf.stacks.unwind_rules import Cfa, Kept, Rule
from rootwalk.ebpf.stacks.unwinding import Unwinding, convert

SPACE = 7
LIBC = ctypes.CDLL(None)


class Own:
    """This process, as the reader knows it."""

    def __init__(self) -> None:
        self.memory: ProcessMemory | None = ProcessMemory(os.getpid())
        self.mappings: Mappings | None = read_mappings(os.getpid())

    def map_again(self, now_s: float) -> None:
        self.mappings = read_mappings(os.getpid())


@pytest.fixture
def own() -> Iterator[Own]:
    process = Own()
    yield process
    assert process.memory is not None
    process.memory.close()


@pytest.fixture
def unwinding() -> Iterator[Unwinding]:
    result = Unwinding()
    yield result
    result.close()


def note(pc: int, stack: bytes = b"", fp: int = 0, *, is_caller: bool = False) -> Note:
    number = (pc - is_caller) // WINDOW_BYTES
    return Note(SPACE, number, pc, 0x7000, fp, 0, 1, is_caller, stack)


def address_of(function: str) -> int:
    address = ctypes.cast(getattr(LIBC, function), ctypes.c_void_p).value
    assert address is not None
    return address


def mapping_at(own: Own, address: int) -> Mapping:
    assert own.mappings is not None
    found = own.mappings.find(address)
    assert found is not None
    return found


def rule_at(window: bytes, offset: int) -> tuple[int, ...]:
    """The rule that holds there, as the kernel's program finds it."""
    rules = [RULE.unpack_from(window, 8 * place) for place in range(RULES)]
    return tuple(rules[sum(begin <= offset for begin, *_ in rules[1:])][1:])


@pytest.mark.parametrize("function", ["printf", "qsort", "nanosleep", "memcpy"])
def test_a_window_has_the_rules_of_the_files_table(
    own: Own, unwinding: Unwinding, function: str
) -> None:
    pc = address_of(function)
    windows = unwinding.learn([note(pc)], lambda pid: own)
    mapping = mapping_at(own, pc)
    assert own.mappings is not None
    with own.mappings.open(mapping) as file:
        table = UnwindTable(file)
        first = pc - pc % WINDOW_BYTES
        shift = (
            mapping.offset - mapping.start
        )  # of libc: address in the file and place in it are one
        for offset in range(WINDOW_BYTES):
            rows = table.find(first + offset + shift).rows
            row = rows[bisect_right([one.at for one in rows], first + offset + shift) - 1]
            said = rule_at(windows[SPACE, pc // WINDOW_BYTES], offset)
            assert said == tuple(RULE.unpack(pack_window([convert(0, row.rule)])[:8])[1:])


def test_callers_are_taught_with_it_as_far_as_the_stack_was_noted(
    own: Own, unwinding: Unwinding
) -> None:
    """The stack of a leaf that `qsort` called, which `nanosleep` called: return addresses at its top."""
    leaf, callers = address_of("getppid"), [address_of("qsort"), address_of("nanosleep")]
    stack = struct.pack("<Q", callers[0] + 1) + bytes(4096)
    windows = unwinding.learn([note(leaf, stack)], lambda pid: own)
    assert {(SPACE, leaf // WINDOW_BYTES), (SPACE, callers[0] // WINDOW_BYTES)} <= set(windows)
    assert (SPACE, callers[1] // WINDOW_BYTES) not in windows
    again = unwinding.learn([note(leaf, stack)], lambda pid: own)
    assert set(again) == {
        (SPACE, leaf // WINDOW_BYTES)
    }  # what the kernel has forgotten, and nothing else


def test_where_no_table_tells_the_window_says_so(own: Own, unwinding: Unwinding) -> None:
    heap = ctypes.create_string_buffer(64)
    nowhere, data = 0x1000, ctypes.addressof(heap)
    windows = unwinding.learn([note(nowhere), note(data)], lambda pid: own)
    assert set(windows.values()) == {pack_window([UnwindRule(0, CfaKind.UNKNOWN)])}


def test_what_the_kernel_lends_has_a_table(own: Own, unwinding: Unwinding) -> None:
    assert own.mappings is not None
    vdso = next((one for one in own.mappings.entries if one.path == "[vdso]"), None)
    if vdso is None:
        pytest.skip("interpreter: needs a vdso")
    windows = unwinding.learn(
        [note(at) for at in range(vdso.start, vdso.end, WINDOW_BYTES)], lambda pid: own
    )
    told = {rule_at(window, offset)[0] for window in windows.values() for offset in (0, 32)}
    assert CfaKind.SP in told
    assert unwinding.unreadable == 0


def test_a_process_that_is_gone_teaches_nothing(unwinding: Unwinding) -> None:
    assert unwinding.learn([note(address_of("qsort"))], lambda pid: None) == {}


def test_a_stack_without_end_ends(own: Own, unwinding: Unwinding) -> None:
    """A return address that leads back to itself, in a stack that is full of it."""
    pc = address_of("getppid")
    stack = struct.pack("<Q", pc + 1) * 1024
    assert len(unwinding.learn([note(pc, stack)], lambda pid: own)) <= 2


def test_a_window_with_too_many_rules_is_unknown_behind_the_last() -> None:
    rules = [UnwindRule(2 * place, CfaKind.SP, place + 1, 0, -1) for place in range(RULES)]
    assert len(pack_window(rules)) == 8 * RULES
    assert pack_window(rules[:1]) == RULE.pack(0, CfaKind.SP, 1, 0, -1) + NO_RULE * (RULES - 1)


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (
            Rule(Cfa.FRAME, 16, Kept.AT_CFA, -16, Kept.AT_CFA, -8),
            UnwindRule(3, CfaKind.FP, 2, -2, -1),
        ),
        (
            Rule(Cfa.AT_FRAME, -8, Kept.AT_FRAME, 0, Kept.AT_CFA, -8),
            UnwindRule(3, CfaKind.AT_FP, -1, 0, -1, True),
        ),
        (Rule(Cfa.PLT, 11, Kept.SAME, 0, Kept.AT_CFA, -8), UnwindRule(3, CfaKind.PLT, 1, 0, -1)),
        (Rule(Cfa.STACK, 12, Kept.SAME, 0, Kept.AT_CFA, -8), UnwindRule(3, CfaKind.UNKNOWN)),
        (Rule(Cfa.STACK, 1 << 20, Kept.SAME, 0, Kept.AT_CFA, -8), UnwindRule(3, CfaKind.UNKNOWN)),
        (
            Rule(Cfa.STACK, 8, Kept.UNSUPPORTED, 0, Kept.AT_CFA, -8),
            UnwindRule(3, CfaKind.UNKNOWN),
        ),
        (Rule(Cfa.STACK, 0), UnwindRule(3, CfaKind.SP)),  # a leaf of arm64
        (Rule(Cfa.END), UnwindRule(3, CfaKind.END)),
    ],
)
def test_rules_are_told_in_words_or_as_unknown(rule: Rule, wanted: UnwindRule) -> None:
    assert convert(3, rule) == wanted
