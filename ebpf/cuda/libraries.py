"""Where CUDA's libraries lie: the files that a process has mapped, and the functions in them that are watched.

Files are opened as the process sees them, in its container too, and only if they are still what is mapped. Of a file
its headers and its table for the dynamic linker are read, some 100 KB of a library of hundreds of megabytes.

Source: System V ABI; arch/x86/kernel/uprobes.c (what is emulated) for `is_dear`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from rootwalk.ebpf.cuda.communicators import LIFETIMES, Lifetime
from rootwalk.ebpf.cuda.functions import FAMILIES, Call
from rootwalk.instrumentation.errors import DecodeError

if TYPE_CHECKING:
    from rootwalk.ebpf.stacks.elf_files import ElfFile

__all__ = ["FileId", "Function", "FunctionFinder", "MappedLibrary", "find_libraries", "is_dear"]

# The version, and what packagers put before it: libcudart-d0da41ae.so.11.0 in wheels.
LIBRARY = re.compile(
    rb"^\S+ ..x. \S+ \S+ +(\d+) +(/.*/(%s)(?:-[0-9a-f]+)?\.so(?:\.[0-9.]+)?)$"
    % b"|".join(name.encode() for name in FAMILIES),
    re.MULTILINE,
)
X86_64 = 62  # EM_X86_64
# A mark for indirect calls that some compilers put first; it changes nothing, so a probe goes behind it.
ENDBR64 = bytes.fromhex("f30f1efa")
CODE_BYTES = 16
# First bytes that the kernel acts out itself: push, nop, jumps and calls by a distance. Others it lets the CPU run
# alone with a trap behind them, which was measured at 10 to 16 us in a virtual machine instead of 0.5.
ACTED_OUT = frozenset((*range(0x50, 0x58), 0x90, 0xE8, 0xE9, 0xEB))
REX_B = 0x41  # makes push %rax push %r8


class FileId(NamedTuple):
    """What tells a file from others."""

    device: int
    inode: int


class MappedLibrary(NamedTuple):
    """A library that a process has mapped.

    Attributes:
        family: Its name without version, as `FAMILIES` has it.
        path: As the process sees it.
        inode: Of the file.
        pid: The process.
    """

    family: str
    path: str
    inode: int
    pid: int

    def open(self, root: Path = Path("/")) -> BinaryIO:
        """Open the file for reading.

        Raises:
            OSError: If it cannot be, is no regular file, or is not the one that is mapped.
        """
        path = root / f"proc/{self.pid}/root" / self.path.lstrip("/")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_ino != self.inode:
            os.close(descriptor)
            raise OSError(f"{self.path} is not what is mapped")
        return os.fdopen(descriptor, "rb")


class Function(NamedTuple):
    """A function of a file.

    Attributes:
        name: As it is exported.
        offset: Where in the file a probe goes.
        call: What it does: what is counted, or the life of a communicator.
        is_dear: Whether a probe would cost much more than others.
    """

    name: str
    offset: int
    call: Call | Lifetime
    is_dear: bool


def find_libraries(pid: int, root: Path = Path("/")) -> list[MappedLibrary]:
    """Return the CUDA libraries that a process runs, each once; nothing where it is gone or not ours to look at."""
    try:
        maps = (root / f"proc/{pid}/maps").read_bytes()
    except OSError:
        return []
    found = {
        MappedLibrary(family.decode(), os.fsdecode(path), int(inode), pid)
        for inode, path, family in LIBRARY.findall(maps)
    }
    return sorted(found)


def is_dear(code: bytes) -> bool:
    """Return whether a probe before these instructions of x86-64 would cost much more than others."""
    if code[0] == REX_B:
        return not 0x50 <= code[1] < 0x58
    return code[0] not in ACTED_OUT


class FunctionFinder:
    """Finds functions, and remembers what it found: copies of a library in several containers are read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, object], list[Function]] = {}

    def find(self, family: str, file: BinaryIO) -> list[Function]:
        """Return the functions of a library that are watched, one for each place in the file.

        Args:
            family: What the library is, as `FAMILIES` has it.
            file: The library.

        Raises:
            DecodeError: If it is no ELF file, or claims what cannot be.
        """
        from rootwalk.ebpf.stacks.elf_files import ElfFile  # numpy: only where there is a GPU

        elf = ElfFile(file)
        status = os.fstat(file.fileno())
        changes = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        key = family, elf.build_id() or changes
        if key not in self._known:
            calls: dict[str, Call | Lifetime] = {**FAMILIES[family], **LIFETIMES.get(family, {})}
            self._known[key] = _read_functions(elf, calls)
        return self._known[key]


def _read_functions(elf: ElfFile, calls: Mapping[str, Call | Lifetime]) -> list[Function]:
    exports = elf.find_exports(name.encode() for name in calls)
    found: dict[int, Function] = {}
    for name, call in calls.items():
        for address in sorted(exports.get(name.encode(), ())):
            offset = elf.offset_of(address)
            if offset is None:
                raise DecodeError(f"cannot find {name}: saw address {address:#x} outside the file")
            code = elf.read(offset, CODE_BYTES)
            is_x86 = elf.machine == X86_64
            if is_x86 and code.startswith(ENDBR64):
                offset, code = offset + len(ENDBR64), code[len(ENDBR64) :]
            found.setdefault(offset, Function(name, offset, call, is_x86 and is_dear(code)))
    return list(found.values())
