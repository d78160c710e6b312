"""Lines out of the tables of code objects: those that the interpreter itself gives, and none out of garbage."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import typing
from collections.abc import Iterator
from random import Random
from types import CodeType, ModuleType

import pytest

from rootwalk.ebpf.stacks.code_lines import MAX_LINE, find_line, find_line_3_10
from support.stack_truth import find_python

MODULES: tuple[ModuleType, ...] = (argparse, json.decoder, subprocess, typing)
# Prints first line, table and (begin, end, line) of every function of a module, as 3.10 has them.
DUMP = """
import argparse, json, sys
def walk(code):
    yield code
    for one in code.co_consts:
        if hasattr(one, 'co_code'): yield from walk(one)
code = compile(open(argparse.__file__).read(), 'argparse.py', 'exec')
print(json.dumps([[c.co_firstlineno, list(c.co_linetable), list(c.co_lines())] for c in walk(code)]))
"""


def codes(module: ModuleType) -> Iterator[CodeType]:
    with open(str(module.__file__), encoding="utf-8") as file:  # noqa: PTH123
        waiting = [compile(file.read(), "module.py", "exec")]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="interpreter: needs CPython 3.11")
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_lines_are_those_of_the_interpreter(module: ModuleType) -> None:
    count = 0
    for code in codes(module):
        for begin, end, line in code.co_lines():
            for offset in range(begin, end, 2):
                found = find_line(code.co_linetable, offset // 2, code.co_firstlineno)
                # The line before a module's first one is written as 0.
                assert found == (line or 0), (code, offset)
                count += 1
    assert count > 1000


def test_lines_are_those_of_3_10() -> None:
    dumped = subprocess.run([find_python("3.10"), "-c", DUMP], capture_output=True, check=True)
    count = 0
    for first, table, lines in json.loads(dumped.stdout):
        for begin, end, line in lines:
            for offset in range(begin, end, 2):
                assert find_line_3_10(bytes(table), offset, first) == (line or 0)
                count += 1
    assert count > 1000


@pytest.mark.parametrize("table", [b"", b"\0", b"\xff", b"\xf0", b"\xe9\x7f\x7f\x7f", b"\x80"])
def test_a_table_that_ends_early_has_no_line(table: bytes) -> None:
    assert find_line(table, 1 << 20, 7) == 0
    assert find_line_3_10(table, 1 << 20, 7) == 0


def test_random_tables_are_survived() -> None:
    random = Random(7)  # noqa: S311  (repeatable)
    for _ in range(3000):
        table = random.randbytes(random.randrange(60))
        unit, first = random.randrange(-5, 200), random.randrange(-(1 << 31), 1 << 31)
        assert 0 <= find_line(table, unit, first) < MAX_LINE
        assert 0 <= find_line_3_10(table, unit, first) < MAX_LINE
