"""ELF files of others: what they tell, and what they cannot do to us."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import tracemalloc
from pathlib import Path
from random import Random

import numpy as np
import pytest

from rootwalk.ebpf.stacks.elf_files import ElfFile, _order_of, read_name
from rootwalk.instrumentation.errors import DecodeError


def interpreter() -> Path:
    name = sysconfig.get_config_var("INSTSONAME")
    library = Path(sysconfig.get_config_var("LIBDIR") or "/") / str(name)
    return library if library.is_file() else Path(sys.executable).resolve()


def small_file() -> bytes:
    """A small real file: an extension module of this interpreter, or its program."""
    folder = Path(sysconfig.get_path("platstdlib")) / "lib-dynload"
    found = [*folder.glob("*.so"), Path(sys.executable).resolve()]
    return min(found, key=lambda one: one.stat().st_size).read_bytes()


def test_symbols_of_this_interpreter_are_found() -> None:
    with interpreter().open("rb") as file:
        elf = ElfFile(file)
        found = elf.find_symbols(frozenset((b"_PyRuntime", b"Py_Version", b"no_such_symbol")))
        functions = elf.functions()
        assert found.keys() == {b"_PyRuntime", b"Py_Version"}
        assert functions is not None
        named = {read_name(file, functions.text, int(at)): n for n, at in enumerate(functions.name)}
        place = named["PyObject_GetAttr"]
        begin, size = int(functions.at[place]), int(functions.size[place])
        assert functions.find(begin) == functions.find(begin + size - 1)
        inside = functions.find(begin + size // 2)
        assert inside is not None
        assert int(functions.at[inside]) == begin
        assert functions.find(0) is None


@pytest.mark.parametrize("top", [1, 1 << 40, 1 << 63], ids=["one", "user space", "anything"])
def test_functions_of_one_address_stay_in_the_order_of_the_file(top: int) -> None:
    numbers = np.random.default_rng(5)
    for count in (0, 1, 2, 1000):
        at = numbers.integers(0, top, count, dtype=np.uint64, endpoint=True)
        at[: count // 2] = at[count // 2 : 2 * (count // 2)][::-1]  # each half of them twice
        assert _order_of(at).tolist() == np.argsort(at, kind="stable").tolist()


def test_reading_a_large_table_takes_little_memory() -> None:
    tracemalloc.start()
    with interpreter().open("rb") as file:
        functions = ElfFile(file).functions()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert functions is not None
    assert peak < 16_000_000


def test_the_symbols_of_pytorch_take_a_quarter_of_what_they_may() -> None:
    """393,112 functions in 2.15; the table may take 100 MB."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("needs PyTorch")
    tracemalloc.start()
    with (Path(torch.origin).parent / "lib" / "libtorch_cpu.so").open("rb") as file:
        functions = ElfFile(file).functions()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert functions is not None
    assert len(functions.at) > 50_000
    assert peak < 25_000_000


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", b"#!/bin/sh\n" * 40, b"\x7fELF\x01\x01" + bytes(90)]
)
def test_what_is_no_elf_file_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with path.open("rb") as file, pytest.raises(DecodeError):
        ElfFile(file)


def test_a_broken_file_is_refused_or_says_little(tmp_path: Path) -> None:
    whole, path = small_file(), tmp_path / "file"
    random = Random(11)  # noqa: S311  (repeatable)
    refused = 0
    for _ in range(300):
        broken = bytearray(whole)
        headers = range(64) if random.random() < 0.5 else range(len(broken) - 2000, len(broken))
        for _ in range(random.randrange(1, 12)):
            broken[random.choice(headers)] = random.choice(
                (0, 1, 0x7F, 0xFF, random.randrange(256))
            )
        path.write_bytes(broken[: random.choice((len(broken), random.randrange(len(broken))))])
        try:
            with path.open("rb") as file:
                elf = ElfFile(file)
                elf.build_id()
                elf.find_section(b".PyRuntime")
                elf.find_symbols(frozenset((b"_PyRuntime",)))
                functions = elf.functions()
                if functions is not None:
                    read_name(file, functions.text, int(functions.name[0]))
        except DecodeError:
            refused += 1
    assert refused > 20
