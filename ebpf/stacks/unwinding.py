"""Rules by which the stack program leaves frames, taught on demand: user space reads tables, the kernel walks.

    walk comes to a window without rules ──▶ note: registers, top of the stack
    note ──▶ window's rules ──▶ the kernel; and of the callers' windows, as far as the noted stack reaches

A window is 64 bytes of a process's addresses with the rules that hold there. The tables are those of the files that are
mapped (.eh_frame), and of what the kernel lends to every process (vdso). Where none tells, the window says so, and the
program goes by frame pointers.
"""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import BinaryIO, NamedTuple, Protocol

from rootwalk.ebpf.stacks.elf_files import LOADED, ElfFile
from rootwalk.ebpf.stacks.mappings import Mapping, Mappings
from rootwalk.ebpf.stacks.process_memory import Memory
from rootwalk.ebpf.stacks.records import (
    RULES,
    WINDOW_BYTES,
    CfaKind,
    Note,
    UnwindRule,
    pack_window,
)
from rootwalk.ebpf.stacks.unwind_rows import UnwindTable
from rootwalk.ebpf.stacks.unwind_rules import Cfa, Kept, Rule
from rootwalk.instrumentation.errors import DecodeError

__all__ = ["FrameRule", "Mapped", "Unwinding", "convert"]

# Files stay open that long; a process with PyTorch runs code of some thirty.
REMEMBERED_FILES = 48
REMEMBERED_WINDOWS = 8192
REMEMBERED_RULES = 8192
MAX_FRAMES = 128
MAX_FRAME_BYTES = 1 << 20
ADDRESS_MASK = (1 << 48) - 1
# Of one look; what is left is noted again.
LEARN_S = 0.2
VDSO = "[vdso]"
MAX_VDSO_BYTES = 64 * 1024
UNKNOWN = UnwindRule(0, CfaKind.UNKNOWN)
CFA_KINDS = {
    Cfa.STACK: CfaKind.SP,
    Cfa.FRAME: CfaKind.FP,
    Cfa.AT_FRAME: CfaKind.AT_FP,
    Cfa.PLT: CfaKind.PLT,
    Cfa.END: CfaKind.END,
}


class Mapped(Protocol):
    """What is known of a process: its memory, and what lies at its addresses."""

    @property
    def memory(self) -> Memory | None:
        """Its memory; None where it may not be read."""

    @property
    def mappings(self) -> Mappings | None:
        """What it has mapped; None where that may not be read."""

    def map_again(self, now_s: float) -> None:
        """Look at its mappings again, if it is time."""


class FrameRule(NamedTuple):
    """How the frame of a function is left at one address, and where the function begins, in the process's addresses."""

    rule: Rule
    start: int


class _Table(NamedTuple):
    """An open file and its table; segments as place in the file, bytes, address."""

    file: BinaryIO | None
    rows: UnwindTable | None
    segments: tuple[tuple[int, int, int], ...]

    def address_of(self, offset: int) -> int | None:
        return next((offset - b + a for b, n, a in self.segments if b <= offset < b + n), None)


class Unwinding:
    """Owns the tables of files, and what of them was taught.

    Attributes:
        unreadable: Files whose table could not be read, or that have none.
        taught: Windows, all in all.
    """

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[int, str], _Table] = OrderedDict()
        self._windows: OrderedDict[tuple[int, int], list[UnwindRule]] = OrderedDict()
        self._rules: OrderedDict[tuple[int, int], tuple[Rule, int]] = OrderedDict()
        self.unreadable = 0
        self.taught = 0

    def learn(
        self, notes: Iterable[Note], find: Callable[[int], Mapped | None]
    ) -> dict[tuple[int, int], bytes]:
        """Return what the kernel is to be told: windows by space and number.

        Args:
            notes: Where rules were missing.
            find: Gives a process by its number.
        """
        found: dict[tuple[int, int], bytes] = {}
        end_s = time.monotonic() + LEARN_S
        for note in notes:
            process = find(note.tgid)
            if process is not None and time.monotonic() < end_s:
                self._follow(note, process, found)
        self.taught += len(found)
        return found

    def rule_at(self, process: Mapped, address: int) -> FrameRule | None:
        """Return how the frame at an address is left; None where no table covers it.

        Args:
            process: Whose.
            address: Of an instruction; of a caller, one inside of its call.
        """
        table, own = self._place(process, address)
        if table is None or table.rows is None or own is None:
            return None
        key = id(table), own
        known = self._rules.get(key)
        if known is None:
            try:
                start, _, rows = table.rows.find(own)
            except (DecodeError, OSError):
                return None
            known = rows[max(bisect_right(rows, own, key=lambda row: row.at) - 1, 0)].rule, start
            self._rules[key] = known
            if len(self._rules) > REMEMBERED_RULES:
                self._rules.popitem(last=False)
        return FrameRule(known[0], address - own + known[1])

    def close(self) -> None:
        """Close all files; safe twice."""
        while self._tables:
            self._close(self._tables.popitem()[1])

    def _follow(self, note: Note, process: Mapped, found: dict[tuple[int, int], bytes]) -> None:
        """Walk a noted stack as the program would, and collect the windows that it comes to."""
        pc, sp, fp, link = note.pc, note.sp, note.fp, note.link
        is_caller = note.is_caller
        self._windows.pop((note.space, note.number), None)  # it has made room for others
        for _ in range(MAX_FRAMES):
            number, offset = divmod(pc - is_caller, WINDOW_BYTES)
            key = note.space, number
            rules = self._windows.get(key)
            if rules is None:
                rules = self._windows[key] = self._window(process, number * WINDOW_BYTES)
                found[key] = pack_window(rules)
                if len(self._windows) > REMEMBERED_WINDOWS:
                    self._windows.popitem(last=False)
            rule = rules[bisect_right(rules, offset, key=lambda one: one.begin) - 1]
            stepped = _step(note, rule, (pc, sp, fp, link))
            if stepped is None:
                return
            pc, sp, fp = stepped
            link, is_caller = 0, True

    def _window(self, process: Mapped, address: int) -> list[UnwindRule]:
        """Return the rules of one window; `UNKNOWN` where no table tells."""
        table, own = self._place(process, address)
        if table is None or table.rows is None or own is None:
            return [UNKNOWN]
        rules: list[UnwindRule] = []
        at = own
        try:
            while at < own + WINDOW_BYTES:
                _, end, rows = table.rows.find(at)
                first = max(bisect_right(rows, at, key=lambda row: row.at) - 1, 0)
                for row in rows[first:]:
                    if row.at >= own + WINDOW_BYTES:
                        break
                    rules.append(convert(max(row.at - own, at - own), row.rule))
                at = max(end, at + 1)
        except (DecodeError, OSError):
            return [UNKNOWN]
        if len(rules) > RULES:
            rules[RULES - 1 :] = [UNKNOWN._replace(begin=rules[RULES - 1].begin)]
        return rules

    def _place(self, process: Mapped, address: int) -> tuple[_Table | None, int | None]:
        """Return the table of what is mapped at an address, and the address in the file's own numbers."""
        mapping = process.mappings.find(address) if process.mappings is not None else None
        if mapping is None:
            process.map_again(time.monotonic())
            mapping = process.mappings.find(address) if process.mappings is not None else None
        if mapping is None or process.mappings is None or not mapping.is_code:
            return None, None
        table = self._table(process, process.mappings, mapping)
        return table, table.address_of(address - mapping.start + mapping.offset)

    def _table(self, process: Mapped, mappings: Mappings, mapping: Mapping) -> _Table:
        key = mapping.inode, mapping.path
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = self._open(process, mappings, mapping)
            if len(self._tables) > REMEMBERED_FILES:
                self._close(self._tables.popitem(last=False)[1])
        else:
            self._tables.move_to_end(key)
        return found

    def _open(self, process: Mapped, mappings: Mappings, mapping: Mapping) -> _Table:
        with contextlib.ExitStack() as opened:
            try:
                if mapping.is_file:
                    file = mappings.open(mapping)
                elif mapping.path == VDSO and process.memory is not None:
                    file = _copy(process.memory, mapping)
                else:
                    return _Table(None, None, ())
                opened.callback(file.close)
                segments = tuple(
                    (s[2], s[5], s[3]) for s in ElfFile(file).segments if s[0] == LOADED
                )
                table = _Table(file, UnwindTable(file), segments)
            except (OSError, DecodeError, ValueError):
                self.unreadable += 1
                return _Table(None, None, ())
            opened.pop_all()
            return table

    def _close(self, table: _Table) -> None:
        self._rules.clear()  # they are known by their table
        if table.file is not None:
            table.file.close()


def _copy(memory: Memory, mapping: Mapping) -> BinaryIO:
    """Return a file of what the kernel lends, from a process's memory."""
    data = memory.read(mapping.start, min(mapping.end - mapping.start, MAX_VDSO_BYTES))
    file = os.fdopen(os.memfd_create("vdso"), "w+b")
    file.write(data)
    file.flush()
    return file


def convert(begin: int, rule: Rule) -> UnwindRule:
    """Return a rule as the program has it: in words, and unknown where it needs what is not followed."""
    kind = CFA_KINDS.get(rule.cfa)
    if kind is None:
        return UnwindRule(begin, CfaKind.UNKNOWN)
    if kind is CfaKind.END:
        return UnwindRule(begin, kind)
    offset = 8 if rule.cfa is Cfa.PLT else rule.cfa_offset
    is_followed = rule.frame in (Kept.SAME, Kept.AT_CFA, Kept.AT_FRAME, Kept.UNDEFINED)
    in_frame = rule.frame in (Kept.AT_CFA, Kept.AT_FRAME)
    offsets = (
        offset,
        rule.frame_offset if in_frame else 0,
        rule.back_offset if rule.back is Kept.AT_CFA else 0,
    )
    fits = all(not one % 8 and -0x8000 <= one // 8 < 0x8000 for one in offsets)
    if not (is_followed and fits) or rule.back not in (Kept.AT_CFA, Kept.SAME):
        return UnwindRule(begin, CfaKind.UNKNOWN)
    cfa, fp, back = (one // 8 for one in offsets)
    return UnwindRule(begin, kind, cfa, fp, back, rule.frame is Kept.AT_FRAME)


def _step(
    note: Note, rule: UnwindRule, point: tuple[int, int, int, int]
) -> tuple[int, int, int] | None:
    """Return the caller's address, stack and frame pointer, as `step_out` in unwind.bpf.h does; None for no caller."""
    pc, sp, fp, link = point
    if rule.cfa is CfaKind.END:
        return None
    if rule.cfa is CfaKind.UNKNOWN:
        back, above = note.word(fp + 8), note.word(fp)
        if not sp <= fp <= sp + MAX_FRAME_BYTES or fp % 8 or not back or above is None:
            return None
        return back & ADDRESS_MASK, fp + 16, above
    cfa: int | None = (fp if rule.cfa in (CfaKind.FP, CfaKind.AT_FP) else sp) + 8 * rule.cfa_words
    if rule.cfa is CfaKind.AT_FP and cfa is not None:
        cfa = note.word(cfa)
    if cfa is None:
        return None
    if rule.cfa is CfaKind.PLT and pc % 16 >= 11:
        cfa += 8
    back = note.word(cfa + 8 * rule.pc_words) if rule.pc_words else link
    if rule.fp_words or rule.is_fp_at_fp:
        kept = note.word((fp if rule.is_fp_at_fp else cfa) + 8 * rule.fp_words)
        fp = 0 if kept is None else kept
    if not back or cfa < sp:
        return None
    return back & ADDRESS_MASK, cfa, fp
