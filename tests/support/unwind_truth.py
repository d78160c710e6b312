"""What readelf says of unwinding, row by row, and in what we say otherwise."""

from __future__ import annotations

import subprocess
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from rootwalk.ebpf.stacks.unwind_rows import UnwindTable
from rootwalk.ebpf.stacks.unwind_rules import Cfa, Kept, Row, Rule
from support.unwind_files import X86_64, Function, make_file, make_frames, make_index, opened

CFA_NAMES = {Cfa.STACK: ("rsp", "sp"), Cfa.FRAME: ("rbp", "x29")}
EXPRESSIONS = {Cfa.PLT, Cfa.AT_FRAME, Cfa.UNSUPPORTED}


class Told(NamedTuple):
    """One row of readelf's.

    Attributes:
        start: First address of its function.
        end: First address behind the function.
        at: From where it holds.
        cfa: Register and offset, or "exp".
        frame: Where the frame pointer is; "u" where nothing is said.
        back: Where the return address is.
    """

    start: int
    end: int
    at: int
    cfa: str
    frame: str
    back: str


def read_told(path: Path) -> Iterator[Told]:
    """Yield what readelf says of each place; where it says two things of one, the second holds."""
    last: Told | None = None
    for told in _read_lines(path):
        if last is not None and (last.start, last.at) != (told.start, told.at):
            yield last
        last = told
    if last is not None:
        yield last


def _read_lines(path: Path) -> Iterator[Told]:
    command = ["readelf", "--wide", "--debug-dump=frames-interp", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as reader:
        assert reader.stdout is not None
        start = end = 0
        columns: list[str] = []
        for line in reader.stdout:
            words = line.split()
            if "FDE" in words:
                start, end = (int(one, 16) for one in words[-1].removeprefix("pc=").split(".."))
            elif "CIE" in words or "terminator" in words:
                end = 0
            elif words[:1] == ["LOC"]:
                columns = words
            elif end and len(words) == len(columns) and len(words) > 1:
                one = dict(zip(columns, words, strict=True))
                frame = one.get("rbp", one.get("x29", "u"))
                yield Told(start, end, int(words[0], 16), one["CFA"], frame, one.get("ra", "u"))


def disagreements(path: Path, every: int = 1) -> tuple[int, list[tuple[Told, Rule]]]:
    """Return how many rows were compared, and the first ten that we see otherwise.

    Args:
        path: The file.
        every: Compare the rows of one in so many functions; 1 for all.
    """
    compared, found = 0, []
    with path.open("rb") as file:
        table = UnwindTable(file)
        at, rules = array("Q"), []
        for row in table.rows():
            at.append(row.at)
            rules.append(row.rule)
        assert table.damaged == 0
        assert all(a < b for a, b in pairwise(at))
        functions, last = 0, -1
        for told in read_told(path):
            functions += told.start != last
            last = told.start
            if functions % every:
                continue
            compared += 1
            rule = rules[bisect_right(at, told.at) - 1]
            one = table.find(told.at)
            alone = one.rows[bisect_right(one.rows, told.at, key=lambda row: row.at) - 1].rule
            if not (is_same(told, rule) and alone is rule and one.start == told.start):
                found.append((told, rule))
            if len(found) == 10:
                break
    return compared, found


def is_same(told: Told, rule: Rule) -> bool:
    if rule.cfa is Cfa.END:
        return told.back == "u"
    if told.cfa == "exp":
        return rule.cfa in EXPRESSIONS
    names = CFA_NAMES.get(rule.cfa)
    if names is None:
        # Functions that align their stack keep the CFA in another register for some instructions.
        other = told.cfa.split("+")[0]
        return rule.cfa is Cfa.UNSUPPORTED and other not in {"rsp", "rbp", "sp", "x29"}
    if told.cfa not in [f"{name}{rule.cfa_offset:+d}" for name in names]:
        return False
    return _is_kept(told.frame, rule.frame, rule.frame_offset) and _is_kept(
        told.back, rule.back, rule.back_offset
    )


def _is_kept(told: str, kept: Kept, offset: int) -> bool:
    if kept is Kept.AT_CFA:
        return told == f"c{offset:+d}"
    if kept in (Kept.SAME, Kept.UNDEFINED):
        return told in ("u", "s")
    return told == "exp" or (kept is Kept.UNSUPPORTED and told == "vexp")


def read_all_ways(
    functions: list[Function], machine: int = X86_64, first: bytes | None = None
) -> list[Row]:
    """The rows of a file of these functions; by its index, by its own order and without sections they are the same."""
    frames, entries = make_frames(functions, machine, first)
    found = []
    for index, has_sections in (
        (make_index(entries), True),
        (make_index(entries), False),
        (None, True),
    ):
        with opened(make_file(frames, index, machine, has_sections)) as file:
            table = UnwindTable(file)
            found.append(list(table.rows()))
            for one in functions:
                rows = table.find(one.start + one.size - 1)
                assert (rows.start, rows.end) == (one.start, one.start + one.size)
                assert rows.rows == table.find(one.start).rows
    assert found[0] == found[1] == found[2]
    return found[0]
