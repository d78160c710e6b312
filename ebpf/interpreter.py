"""Where the state of a process's Python interpreter lies in its memory: a futex inside it is the interpreter lock.

CPython keeps the lock (`gil->cond`, `gil->mutex`) in `_PyRuntime`: since 3.12 in the main interpreter, which is part of
it. Locks that Python code makes lie on the heap. So the address of a futex tells the two apart, without a probe.
Needs the right to read /proc/<pid>/maps and the mapped file. Cost: one process, once: 1 to 3 ms.

Source: CPython Python/ceval_gil.c, Include/internal/pycore_runtime.h, 3.11 to 3.14; ELF-64.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO, NamedTuple

__all__ = ["Interpreters", "find_symbol"]

REMEMBERED, REMEMBERED_FILES = 256, 64
SYMBOL = b"_PyRuntime"
INTERPRETER_FILE = re.compile(r"(?:lib)?python3\.\d+[a-z]*(?:\.so.*)?|python3?|libpython3\.so.*")
ELF_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SEGMENT = struct.Struct("<IIQQQQQQ")
ENTRY = struct.Struct("<IBBHQQ")
SYMBOL_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
LOADED = 1  # PT_LOAD
# A stripped table of 2 MB holds every symbol of a Python; more is another library with a like name.
MAX_TABLE_BYTES = 16 * 1024 * 1024


class Symbol(NamedTuple):
    """Where a symbol lies: offset from the address at which its file's first segment is mapped, and bytes."""

    offset: int
    size: int


def _sections(file: BinaryIO) -> tuple[list[tuple[int, ...]], int] | None:
    """Return section headers and the address of the first loaded segment; None for no ELF-64 file."""
    head = file.read(ELF_HEADER.size)
    if len(head) < ELF_HEADER.size or head[:5] != b"\x7fELF\x02":
        return None
    (_, _, _, _, segments_at, sections_at, _, _, _, segment_count, section_bytes, count, _) = (
        ELF_HEADER.unpack(head)
    )
    if section_bytes != SECTION.size:
        return None
    file.seek(segments_at)
    segments = file.read(segment_count * SEGMENT.size)
    first = min(
        (s[3] - s[2] for s in SEGMENT.iter_unpack(segments) if s[0] == LOADED),
        default=0,
    )
    file.seek(sections_at)
    return list(SECTION.iter_unpack(file.read(count * SECTION.size))), first


def _open_regular(path: Path) -> BinaryIO:
    """Return a file that is open for reading.

    Raises:
        OSError: If it cannot be, or is no regular file: the path is what another process calls its own.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def find_symbol(path: Path, name: bytes = SYMBOL) -> Symbol | None:
    """Return where a symbol of an ELF file lies; None when the file has no such symbol or cannot be read.

    Args:
        path: The file.
        name: Of a data symbol.
    """
    try:
        with _open_regular(path) as file:
            found = _sections(file)
            if found is None:
                return None
            sections, first = found
            for section in sections:
                if section[1] in SYMBOL_TABLES and section[6] < len(sections):
                    symbol = _search(file, section, sections[section[6]], name, first)
                    if symbol is not None:
                        return symbol
    except (OSError, struct.error, ValueError):
        return None
    return None


def _search(
    file: BinaryIO, table: tuple[int, ...], text: tuple[int, ...], name: bytes, first: int
) -> Symbol | None:
    if max(table[5], text[5]) > MAX_TABLE_BYTES:
        return None
    file.seek(text[4])
    names = file.read(text[5])
    at = names.find(b"\0" + name + b"\0") + 1
    if not at:
        return None
    file.seek(table[4])
    entries = file.read(table[5] // ENTRY.size * ENTRY.size)
    for name_at, _, _, section, value, size in ENTRY.iter_unpack(entries):
        if name_at == at and section and size:
            return Symbol(value - first, size)
    return None


class Interpreters:
    """Remembers for processes where their interpreter's state lies.

    Args:
        root: Folder that holds the processes.
    """

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._known: OrderedDict[int, tuple[int, int] | None] = OrderedDict()
        # By device, inode and time: all ranks run the same file, each under a path of its own.
        self._symbols: OrderedDict[tuple[int, int, int], Symbol] = OrderedDict()

    def holds_lock(self, pid: int, address: int) -> bool:
        """Return whether an address of a process lies in its interpreter's state."""
        if pid not in self._known:
            self._known[pid] = self._find(pid)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        bounds = self._known[pid]
        return bounds is not None and bounds[0] <= address < bounds[1]

    def forget(self, pid: int) -> None:
        """Forget a process: its number may be another's soon, or it has become another program."""
        self._known.pop(pid, None)

    def _find(self, pid: int) -> tuple[int, int] | None:
        try:
            with (self._root / str(pid) / "maps").open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    words = line.split(None, 5)
                    if len(words) < 6 or words[2] != "00000000":
                        continue
                    path = words[5].strip()
                    if INTERPRETER_FILE.fullmatch(path.rpartition("/")[2]) is None:
                        continue
                    symbol = self._symbol(pid, path)
                    if symbol is not None:
                        start = int(words[0].partition("-")[0], 16) + symbol.offset
                        return start, start + symbol.size
        except (OSError, ValueError):
            return None
        return None

    def _symbol(self, pid: int, path: str) -> Symbol | None:
        file = self._root / str(pid) / "root" / path.lstrip("/")
        try:
            state = file.stat()
        except OSError:
            return None
        key = (state.st_dev, state.st_ino, state.st_mtime_ns)
        symbol = self._symbols.get(key) or find_symbol(file)
        if symbol is not None:  # else the process may have gone meanwhile
            self._symbols[key] = symbol
            if len(self._symbols) > REMEMBERED_FILES:
                self._symbols.popitem(last=False)
        return symbol
