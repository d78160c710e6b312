"""The memory of another process, read as it is: whatever lies there is bounded, and checked by who asked for it.

Needs the right to trace the process (root or CAP_SYS_PTRACE). A descriptor stays with the program that the process ran
when it was opened: after an exec, or its end, nothing can be read, and never another process's memory.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Protocol

__all__ = ["Memory", "ProcessMemory"]

WORD = struct.Struct("<Q")
# Nothing of a process lies above: half of 57 bits, the most that x86-64 and arm64 give it.
END = 1 << 56


class Memory(Protocol):
    """What can be read at an address; fewer bytes than asked for, or none, where it cannot."""

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes there."""
        ...


class ProcessMemory:
    """One process's memory.

    Args:
        pid: Its id.
        root: Folder that holds the processes.

    Raises:
        OSError: If it is gone, or not ours to read.
    """

    def __init__(self, pid: int, root: Path = Path("/proc")) -> None:
        self._fd = os.open(root / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address; fewer, or none, where they cannot be read."""
        if not 0 < address < END:
            return b""
        try:
            return os.pread(self._fd, size, address)
        except OSError:
            return b""

    def word(self, address: int) -> int | None:
        """Return the 64-bit word at an address; None where it cannot be read."""
        data = self.read(address, WORD.size)
        return WORD.unpack(data)[0] if len(data) == WORD.size else None

    def close(self) -> None:
        """Let go of it; safe twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
