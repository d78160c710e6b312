"""Names of Python functions out of another process's memory: the right ones, and none out of garbage."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Mapping
from random import Random

import pytest

from rootwalk.ebpf.stacks.code_names import MAX_NAME, UNKNOWN_PYTHON, CodeNames
from rootwalk.ebpf.stacks.interpreters import Interpreter, InterpreterFinder
from rootwalk.ebpf.stacks.layouts import LAYOUTS, OWN_OFFSETS, check_own_offsets
from rootwalk.ebpf.stacks.process_memory import ProcessMemory
from rootwalk.instrumentation.profiles import FrameKind

VERSION = sys.version_info[:2]
LAYOUT = LAYOUTS[3, 12]
TYPE = 0x5000


class FakeMemory:
    """Memory made of pieces."""

    def __init__(self, pieces: Mapping[int, bytes]) -> None:
        self.pieces = dict(pieces)

    def read(self, address: int, size: int) -> bytes:
        for begin, data in self.pieces.items():
            if begin <= address < begin + len(data):
                return data[address - begin :][:size]
        return b""

    def word(self, address: int) -> int | None:
        data = self.read(address, 8)
        return struct.unpack("<Q", data)[0] if len(data) == 8 else None


def text(value: str, *, length: int | None = None, kind: int = 1, is_ascii: bool = True) -> bytes:
    state = kind << 2 | 1 << 5 | (1 << 6 if is_ascii else 0)
    head = struct.pack("<QQqqI", 1, 0x6000, len(value) if length is None else length, -1, state)
    encoding = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind]
    return head.ljust(LAYOUT.text_ascii if is_ascii else LAYOUT.text_other, b"\0") + value.encode(
        encoding
    )


def code(name_at: int, file_at: int, line: int = 7, code_type: int = TYPE) -> bytes:
    data = bytearray(200)
    struct.pack_into("<QQ", data, 0, 1, code_type)
    struct.pack_into("<Q", data, LAYOUT.code_qualname, name_at)
    struct.pack_into("<Q", data, LAYOUT.code_filename, file_at)
    struct.pack_into("<i", data, LAYOUT.code_first_line, line)
    return bytes(data)


def names_of(pieces: Mapping[int, bytes]) -> CodeNames:
    python = Interpreter((3, 12), LAYOUT, 0x9000, TYPE, "python3.12")
    return CodeNames(FakeMemory(pieces), python)


def test_a_function_is_read_with_its_file_and_line() -> None:
    names = names_of(
        {
            0x100: code(0x1000, 0x2000),
            0x1000: text("Net.forward"),
            0x2000: text("/secret/place/net.py"),
        }
    )
    frame = names.frame(0x100, 0.0)
    assert (frame.function, frame.file, frame.first_line) == ("Net.forward", "net.py", 7)
    assert frame.kind is FrameKind.CPYTHON


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("/opt/python3.12/site-packages/torch/nn/modules/module.py", "torch"),
        ("/usr/lib/python3/dist-packages/six.py", "six"),
        ("/home/me/site-packages/venv/lib/site-packages/numpy/core.py", "numpy"),
        ("/home/me/train/net.py", ""),
        ("<frozen runpy>", ""),
    ],
)
def test_an_installed_package_is_told_and_no_other_folder(path: str, package: str) -> None:
    names = names_of({0x100: code(0x1000, 0x2000), 0x1000: text("Net.forward"), 0x2000: text(path)})
    frame = names.frame(0x100, 0.0)
    assert (frame.package, "/" in frame.file) == (package, False)


@pytest.mark.parametrize(("name", "kind"), [("größe", 1), ("例.ö", 2), ("\U0001d518x", 4)])
def test_names_need_not_be_ascii(name: str, kind: int) -> None:
    pieces = {
        0x100: code(0x1000, 0x2000),
        0x1000: text(name, kind=kind, is_ascii=False),
        0x2000: text("a.py"),
    }
    assert names_of(pieces).frame(0x100, 0.0).function == name


def test_hostile_names_are_cut_and_printable() -> None:
    pieces = {
        0x100: code(0x1000, 0x2000),
        0x1000: text("a\x1b[31m\n" * 200),
        0x2000: text("x" * 5000 + "/b.py"),
    }
    frame = names_of(pieces).frame(0x100, 0.0)
    assert frame.function is not None
    assert len(frame.function) <= MAX_NAME
    assert frame.function.isprintable()
    assert frame.file == "b.py"


@pytest.mark.parametrize(
    "pieces",
    [
        {},
        {0x100: bytes(40)},
        {0x100: code(0x1000, 0x2000, code_type=0x5008), 0x1000: text("f"), 0x2000: text("a.py")},
        {0x100: code(0x1000, 0x2000), 0x2000: text("a.py")},
        {0x100: code(0x1000, 0x2000), 0x1000: text("f", length=-1), 0x2000: text("a.py")},
        {0x100: code(0x1000, 0x2000), 0x1000: text("f", length=1 << 40), 0x2000: text("a.py")},
        {0x100: code(0x1000, 0x2000), 0x1000: text("f", length=99), 0x2000: text("a.py")},
        {0x100: code(0x1000, 0x2000, line=-5), 0x1000: text("f"), 0x2000: text("a.py")},
    ],
)
def test_what_is_no_code_object_is_unknown_and_counted(pieces: Mapping[int, bytes]) -> None:
    names = names_of(pieces)
    assert names.frame(0x100, 0.0) is UNKNOWN_PYTHON
    assert names.unread == 1


def test_random_memory_is_survived() -> None:
    random = Random(3)  # noqa: S311  (repeatable)
    for _ in range(500):
        pieces = {at: random.randbytes(600) for at in (0x100, 0x1000, 0x2000)}
        pieces[0x100] = code(0x1000, 0x2000, random.randrange(-9, 99))
        frame = names_of(pieces).frame(0x100, 0.0)
        assert frame.function is None or len(frame.function) <= MAX_NAME


def test_a_freed_function_is_looked_at_again_and_a_gone_process_keeps_its_names() -> None:
    memory = FakeMemory({0x100: code(0x1000, 0x2000), 0x1000: text("first"), 0x2000: text("a.py")})
    names = CodeNames(memory, Interpreter((3, 12), LAYOUT, 0x9000, TYPE, "python3.12"))
    assert names.frame(0x100, 0.0).function == "first"
    memory.pieces[0x1000] = text("second")
    assert names.frame(0x100, 1.0).function == "first"
    assert names.frame(0x100, 60.0).function == "second"
    memory.pieces.clear()
    assert names.frame(0x100, 120.0).function == "second"
    assert names.unread == 1


def test_our_own_interpreter_is_found_and_read() -> None:
    if VERSION not in LAYOUTS:
        pytest.skip("interpreter: needs CPython of a known layout")
    memory = ProcessMemory(os.getpid())
    python = InterpreterFinder().find(os.getpid(), memory)
    assert python.version == VERSION
    assert python.code_type == id(type(names_of.__code__))
    frame = CodeNames(memory, python).frame(id(test_random_memory_is_survived.__code__), 0.0)
    assert frame.function == "test_random_memory_is_survived"
    assert frame.file == "test_code_names.py"
    assert frame.first_line == test_random_memory_is_survived.__code__.co_firstlineno
    memory.close()
    assert memory.read(id(frame), 8) == b""


def test_memory_is_read_inside_bounds_only() -> None:
    memory = ProcessMemory(os.getpid())
    value = ctypes.c_uint64(0xABCD)
    assert memory.word(ctypes.addressof(value)) == 0xABCD
    for address in (0, -8, 8, 1 << 60, 1 << 64):
        assert memory.word(address) is None
    memory.close()


def own_offsets(**changes: int) -> bytes:
    layout = LAYOUTS[3, 13]
    words = [0] * 47
    numbers = {
        4: layout.interpreters_head,
        8: layout.threads_head,
        20: layout.thread_next,
        22: layout.thread_frame,
        24: layout.thread_native_id,
        28: layout.frame_previous,
        29: layout.frame_code,
        32: layout.frame_owner,
        34: layout.code_filename,
        36: layout.code_qualname,
        38: layout.code_first_line,
    }
    for place, value in numbers.items():
        words[place] = value
    words[1] = changes.get("free_threaded", 0)
    words[22] += changes.get("moved", 0)
    return OWN_OFFSETS.pack(b"xdebugpy", *words)


def test_an_interpreter_that_says_other_offsets_is_refused() -> None:
    layout = LAYOUTS[3, 13]
    assert check_own_offsets(own_offsets(), layout) is None
    assert check_own_offsets(own_offsets(free_threaded=1), layout) == "it is free-threaded"
    assert check_own_offsets(own_offsets(moved=8), layout) == "thread_frame is 80, not 72"
    assert check_own_offsets(bytes(400), layout) == "it does not tell its offsets"
    assert check_own_offsets(b"", layout) == "it does not tell its offsets"
