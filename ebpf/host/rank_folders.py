"""The folders in /proc of the ranks that are watched, held open.

A folder in /proc that is held open belongs to its process for ever: when that has ended, files in it cannot be opened
any more, even if another process has got its number. So nothing that is read through it can be a stranger's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from rootwalk.ebpf.kernel_files import read_text

__all__ = ["RankFolders"]


class RankFolders:
    """Owns one open folder a rank, of its first process; its children are left out.

    Args:
        root: What /proc is below.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._pid_by_slot: dict[int, int] = {}
        self._folder_by_slot: dict[int, int] = {}

    def __iter__(self) -> Iterator[int]:
        """Yield the slots of the ranks whose process was there when it was told of."""
        return iter(list(self._folder_by_slot))

    def pid(self, slot: int) -> int:
        """Return a rank's process."""
        return self._pid_by_slot[slot]

    def watch(self, pid: int, slot: int) -> None:
        """Take the first process that is told for a slot as the rank's; others are its children."""
        if slot in self._pid_by_slot:
            return
        self._pid_by_slot[slot] = pid
        with contextlib.suppress(OSError):  # it has ended already: nothing will be read of it
            self._folder_by_slot[slot] = os.open(
                self._root / "proc" / str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            )

    def forget(self, pid: int) -> list[int]:
        """Stop reading a rank; return its slots, none when the process is no rank's."""
        slots = [slot for slot, known in self._pid_by_slot.items() if known == pid]
        for slot in slots:
            del self._pid_by_slot[slot]
            folder = self._folder_by_slot.pop(slot, None)
            if folder is not None:
                os.close(folder)
        return slots

    def read(self, slot: int, name: str) -> str:
        """Return a file of a rank's folder; empty when the process has ended."""
        return read_text(name, folder=self._folder_by_slot[slot])

    def open(self, slot: int, name: str, flags: int) -> int:
        """Open a file below a rank's folder, such as one of its root; return its descriptor.

        Raises:
            OSError: If it cannot be opened, or the process has ended.
        """
        return os.open(name, flags, dir_fd=self._folder_by_slot[slot])

    def list(self, slot: int, name: str) -> list[str]:
        """Return the names in a folder of a rank's folder; empty when the process has ended."""
        try:
            folder = os.open(
                name,
                os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC,
                dir_fd=self._folder_by_slot[slot],
            )
        except OSError:
            return []
        try:
            with os.scandir(folder) as entries:
                return [entry.name for entry in entries]
        except OSError:
            return []
        finally:
            os.close(folder)

    def close(self) -> None:
        """Close all folders; safe twice."""
        for pid in list(self._pid_by_slot.values()):
            self.forget(pid)
