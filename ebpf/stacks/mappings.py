"""The files that a process has mapped: opened as the process sees them, and only if they are still the same."""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

__all__ = ["Mapping", "Mappings", "read_mappings"]

# A process with PyTorch has some 1,500 mappings.
MAX_MAPPINGS = 65_536


class Mapping(NamedTuple):
    """One line of /proc/<pid>/maps.

    Attributes:
        start: First address.
        end: First address behind it.
        offset: Where in the file it begins.
        inode: Of the file; 0 for none.
        path: As the process sees it, or a name in brackets; empty for none.
        is_code: Whether what lies there may be run.
    """

    start: int
    end: int
    offset: int
    inode: int
    path: str
    is_code: bool

    @property
    def is_file(self) -> bool:
        """Whether a file lies there."""
        return self.inode != 0 and self.path.startswith("/")


class Mappings:
    """The mappings of a process at one moment."""

    def __init__(self, pid: int, entries: list[Mapping], root: Path = Path("/proc")) -> None:
        self._pid = pid
        self._root = root
        self.entries = entries
        self._starts = [entry.start for entry in entries]

    def find(self, address: int) -> Mapping | None:
        """Return what is mapped at an address."""
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address >= self.entries[place].end:
            return None
        return self.entries[place]

    def open(self, mapping: Mapping) -> BinaryIO:
        """Open a mapped file for reading.

        Raises:
            OSError: If it cannot be, is no regular file, or is not the one that is mapped.
        """
        path = self._root / str(self._pid) / "root" / mapping.path.lstrip("/")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_ino != mapping.inode:
            os.close(descriptor)
            raise OSError(f"{mapping.path} is not what is mapped")
        return os.fdopen(descriptor, "rb")


def read_mappings(pid: int, root: Path = Path("/proc")) -> Mappings:
    """Return what a process has mapped now.

    Raises:
        OSError: If it is gone, or not ours to look at.
    """
    entries = []
    with (root / str(pid) / "maps").open(encoding="utf-8", errors="replace") as lines:
        for line in islice(lines, MAX_MAPPINGS):
            words = line.rstrip("\n").split(None, 5)
            start, _, end = words[0].partition("-")
            path = words[5] if len(words) > 5 else ""
            numbers = int(start, 16), int(end, 16), int(words[2], 16), int(words[4])
            entries.append(Mapping(*numbers, path, "x" in words[1]))
    return Mappings(pid, entries, root)
