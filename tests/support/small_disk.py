"""A disk that is soon full: a tmpfs of a few MiB, mounted for one test."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBC = ctypes.CDLL(None, use_errno=True)
BLOCK = b"\0" * 4096
# Asks umount to let go of a folder that a process still uses.
MNT_DETACH = 2


class SmallDisk:
    """A mounted tmpfs: `folder` is where, `fill` and `free` are what happens to a disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Write a file until no more than so much is left."""
        with self._filler.open("ab", buffering=0) as file:
            while self.free_bytes() > leave_bytes:
                try:
                    file.write(BLOCK)
                except OSError as error:
                    if error.errno == errno.ENOSPC:
                        return
                    raise

    def free(self) -> None:
        """Remove that file."""
        self._filler.unlink()

    def free_bytes(self) -> int:
        state = os.statvfs(self.folder)
        return state.f_bavail * state.f_frsize


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount a small disk for the length of a block; skips the test where that is not allowed."""
    folder.mkdir()
    options = f"size={size_bytes}".encode()
    if LIBC.mount(b"rootwalk-test", str(folder).encode(), b"tmpfs", 0, options) != 0:
        pytest.skip(f"mount: {errno.errorcode[ctypes.get_errno()]}")
    try:
        yield SmallDisk(folder)
    finally:
        LIBC.umount2(str(folder).encode(), MNT_DETACH)
