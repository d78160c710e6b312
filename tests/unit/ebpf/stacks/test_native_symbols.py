"""Native functions of files that say little, lie, or are gone: a name, an address, or unknown, and never an error.

The files are compiled here and loaded into this process, whose own mappings are read.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rootwalk.ebpf.stacks.mappings import Mappings, read_mappings
from rootwalk.ebpf.stacks.native_symbols import MAX_NAME, NativeSymbols
from rootwalk.instrumentation.profiles import Frame, FrameKind

SOURCE = "int shape_of_a_library(int n) { return n + 1; }\n"
LONG = "long_" * 200
Load = Callable[..., tuple[Path, int]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Compiles a library with options and loads it; gives its file and the address of its function."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("interpreter: needs a C compiler")

    def made(*options: str, name: str = "shape_of_a_library") -> tuple[Path, int]:
        source = tmp_path / "library.c"
        source.write_text(SOURCE.replace("shape_of_a_library", name))
        path = tmp_path / f"lib{len(list(tmp_path.iterdir()))}.so"
        command = [compiler, "-shared", "-fPIC", *options, "-o", str(path), str(source)]
        subprocess.run(command, check=True)
        function = getattr(ctypes.CDLL(str(path)), name)
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        return path, address

    return made


def frame_at(symbols: NativeSymbols, address: int, mappings: Mappings | None = None) -> Frame:
    found = mappings or read_mappings(os.getpid())
    mapping = found.find(address)
    assert mapping is not None
    return symbols.frame(found, mapping, address)


def test_a_function_is_named_with_its_file_and_build_id(load: Load) -> None:
    path, address = load("-Wl,--build-id=0xdeadbeef")
    symbols = NativeSymbols()
    frame = frame_at(symbols, address)
    assert frame.function == "shape_of_a_library"
    assert frame.binary is not None
    assert (frame.binary.name, frame.binary.build_id) == (path.name, "deadbeef")
    assert symbols.unreadable == 0


def test_a_file_without_a_build_id_still_tells_its_functions(load: Load) -> None:
    first, one = load("-Wl,--build-id=none")
    second, other = load("-Wl,--build-id=none", name="another_shape")
    symbols = NativeSymbols()
    frames = frame_at(symbols, one), frame_at(symbols, other)
    assert [frame.function for frame in frames] == ["shape_of_a_library", "another_shape"]
    assert [frame.binary and frame.binary.name for frame in frames] == [first.name, second.name]
    assert [frame.binary and frame.binary.build_id for frame in frames] == [None, None]


def test_a_name_without_end_is_cut(load: Load) -> None:
    _, address = load(name=LONG)
    frame = frame_at(NativeSymbols(), address)
    assert frame.function == LONG[:MAX_NAME]


def test_code_that_was_made_at_run_time_is_unknown_and_says_what_it_is() -> None:
    flags, rights = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_EXEC
    with mmap.mmap(-1, mmap.PAGESIZE, flags=flags, prot=rights):
        mappings = read_mappings(os.getpid())
        (made, *_) = (one for one in mappings.entries if one.is_code and not one.path)
        symbols = NativeSymbols()
        frame = symbols.frame(mappings, made, made.start + 8)
    assert (frame.kind, frame.function) == (FrameKind.NATIVE, "unknown")
    assert frame.binary is not None
    assert frame.binary.name == "anonymous"
    assert symbols.unreadable == 0


@pytest.mark.parametrize("damage", ["gone", "replaced", "garbage"])
def test_a_file_that_is_not_what_was_mapped_is_unknown_and_counted(load: Load, damage: str) -> None:
    path, address = load()
    mappings = read_mappings(os.getpid())
    if damage == "garbage":  # the same inode
        mapped = mappings.find(address)
        assert mapped is not None
        other = path.with_name("garbage.so")
        other.write_bytes(b"\x7fELF" + bytes(200))
        entry = mapped._replace(path=str(other), inode=other.stat().st_ino)
        mappings = Mappings(os.getpid(), [entry])
    else:
        path.unlink()
    if damage == "replaced":
        path.write_bytes(b"\x7fELF" + bytes(200))
    symbols = NativeSymbols()
    frame = frame_at(symbols, address, mappings)
    assert frame.function == "unknown"
    assert symbols.unreadable == 1
    assert frame_at(symbols, address, mappings) == frame
    assert symbols.unreadable == 1  # it is tried once


def test_a_process_that_has_ended_has_files_of_which_nothing_is_known(load: Load) -> None:
    _, address = load()
    ended = subprocess.Popen(["true"])
    ended.wait()
    mapped = read_mappings(os.getpid()).find(address)
    assert mapped is not None
    symbols = NativeSymbols()
    frame = frame_at(symbols, address, Mappings(ended.pid, [mapped]))
    assert frame.function == "unknown"
    assert symbols.unreadable == 1
