"""The Python interpreter of a process: which version it is, and where its state lies; or why its stacks are not read.

It is found by what it exports: `_PyRuntime` and `Py_Version`, in the program itself or in libpython; both stay in a
stripped file. Where they are hidden, 3.13's section `.PyRuntime` does as well, for it tells version and offsets itself.
"""

from __future__ import annotations

import os
import re
import struct
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from rootwalk.ebpf.stacks.elf_files import ElfFile
from rootwalk.ebpf.stacks.layouts import (
    COOKIE,
    LAYOUTS,
    OWN_OFFSETS_BYTES,
    Layout,
    check_own_offsets,
)
from rootwalk.ebpf.stacks.mappings import Mapping as MappedPart
from rootwalk.ebpf.stacks.mappings import Mappings, read_mappings
from rootwalk.ebpf.stacks.process_memory import Memory, ProcessMemory
from rootwalk.instrumentation.errors import DecodeError

__all__ = ["Interpreter", "InterpreterFinder", "Located", "Refusal", "RefusedError"]

FILE = re.compile(r"(?:lib)?python3(?:\.(\d+))?[a-z]*(?:\.so[\d.]*)?")
RUNTIME, VERSION, CODE_TYPE = b"_PyRuntime", b"Py_Version", b"PyCode_Type"
WANTED = frozenset((RUNTIME, VERSION, CODE_TYPE))
RUNTIME_SECTION = b".PyRuntime"
WORD = struct.Struct("<Q")
REMEMBERED_FILES = 64
# The first that has `Py_Version`.
STATED_MINOR = 11
# The first version that tells its offsets, as `Py_Version` writes it without its last two bytes.
SELF_TELLING = (3, 13)


class Refusal(StrEnum):
    """Why the Python stacks of a process are not read."""

    GONE = "GONE"
    NO_INTERPRETER = "NO_INTERPRETER"
    UNKNOWN_VERSION = "UNKNOWN_VERSION"
    UNKNOWN_LAYOUT = "UNKNOWN_LAYOUT"


class RefusedError(Exception):
    """The Python stacks of a process are not read.

    Attributes:
        reason: Why.
    """

    def __init__(self, reason: Refusal, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter whose stacks can be read.

    Attributes:
        version: Major and minor.
        layout: Its offsets.
        runtime: Address of `_PyRuntime`.
        code_type: Address of `PyCode_Type`, to which every code object points; None where it is hidden.
        file: Name of the file that it was loaded from, without its folder.
    """

    version: tuple[int, int]
    layout: Layout
    runtime: int
    code_type: int | None
    file: str


@dataclass(frozen=True, slots=True)
class Located:
    """Where the interpreter of a process is, of whichever version; attributes as those of `Interpreter`."""

    version: tuple[int, int]
    runtime: int
    code_type: int | None
    file: str


class InterpreterFinder:
    """Finds the interpreters of processes; of a file that many of them run, the symbols are read once.

    Args:
        root: Folder that holds the processes.
    """

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._files: OrderedDict[tuple[int, int, int], Mapping[bytes, int]] = OrderedDict()

    def find(self, pid: int, memory: ProcessMemory) -> Interpreter:
        """Return the interpreter of a process.

        Args:
            pid: The process.
            memory: Its memory.

        Raises:
            RefusedError: With the reason.
        """
        try:
            mappings = read_mappings(pid, self._root)
        except (OSError, ValueError, IndexError) as error:
            text = f"cannot read what process {pid} maps: saw {error}"
            raise RefusedError(Refusal.GONE, text) from error
        located = self.locate(mappings, memory)
        if located is None:
            raise RefusedError(
                Refusal.NO_INTERPRETER,
                f"cannot find the interpreter of process {pid}: saw no python3 or libpython3 with {RUNTIME.decode()}",
            )
        layout = _choose_layout(located.version, memory, located.runtime)
        return Interpreter(
            located.version, layout, located.runtime, located.code_type, located.file
        )

    def locate(self, mappings: Mappings, memory: Memory) -> Located | None:
        """Return where the interpreter of a process is; None without one.

        Args:
            mappings: What the process has mapped.
            memory: Its memory.
        """
        for mapped in mappings.entries:
            name = mapped.path.rpartition("/")[2]
            named = FILE.fullmatch(name)
            if mapped.is_file and not mapped.offset and named is not None:
                found = self._look_into(mappings, mapped, memory, named.group(1))
                if found is not None:
                    return found
        return None

    def _look_into(
        self, mappings: Mappings, mapped: MappedPart, memory: Memory, minor: str | None
    ) -> Located | None:
        try:
            with mappings.open(mapped) as file:
                offsets = self._read(file)
        except (OSError, DecodeError, ValueError):
            return None
        if RUNTIME not in offsets:
            return None
        addresses = {name: mapped.start + offset for name, offset in offsets.items()}
        version = _read_version(memory, addresses.get(VERSION), addresses[RUNTIME])
        if version is None and minor is not None:
            # Before 3.11 nothing in memory says it, and the file's name does.
            version = (3, int(minor)) if int(minor) < STATED_MINOR else None
        if version is None:
            return None
        name = mapped.path.rpartition("/")[2]
        return Located(version, addresses[RUNTIME], addresses.get(CODE_TYPE), name)

    def _read(self, file: BinaryIO) -> Mapping[bytes, int]:
        """Return where symbols lie above the address at which the file's beginning is mapped."""
        state = os.fstat(file.fileno())
        key = state.st_dev, state.st_ino, state.st_mtime_ns
        offsets = self._files.get(key)
        if offsets is None:
            elf = ElfFile(file)
            first = elf.first_address()
            found = {name: at - first for name, at in elf.find_symbols(WANTED).items()}
            section = elf.find_section(RUNTIME_SECTION)
            if RUNTIME not in found and section is not None:
                found[RUNTIME] = section.address - first
            offsets = self._files[key] = found
            if len(self._files) > REMEMBERED_FILES:
                self._files.popitem(last=False)
        return offsets


def _choose_layout(version: tuple[int, int], memory: Memory, runtime: int) -> Layout:
    layout = LAYOUTS.get(version)
    shown = ".".join(map(str, version))
    if layout is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in LAYOUTS)
        raise RefusedError(
            Refusal.UNKNOWN_VERSION,
            f"cannot read stacks of CPython {shown}: needs one of {known}",
        )
    if version >= SELF_TELLING:
        why = check_own_offsets(memory.read(runtime, OWN_OFFSETS_BYTES), layout)
        if why is not None:
            raise RefusedError(
                Refusal.UNKNOWN_LAYOUT, f"cannot read stacks of this CPython {shown}: {why}"
            )
    return layout


def _read_version(memory: Memory, at: int | None, runtime: int) -> tuple[int, int] | None:
    """Return the version that the process says it runs; None where it says none."""
    data = memory.read(at, WORD.size) if at is not None else b""
    if len(data) == WORD.size:
        word = WORD.unpack(data)[0]
    else:
        head = memory.read(runtime, 16)
        if head[:8] != COOKIE or len(head) < 16:
            return None
        word = WORD.unpack_from(head, 8)[0]
    return word >> 24 & 0xFF, word >> 16 & 0xFF
