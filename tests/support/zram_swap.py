"""A place to swap to, for the length of a block: a disk in compressed memory, which is as fast on every machine."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

CONTROL = Path("/sys/class/zram-control")
# include/linux/swap.h (`union swap_header`): version, last page, number of bad pages; the magic ends the first page.
HEADER = struct.Struct("<1024xIII")
MAGIC = b"SWAPSPACE2"


def _swap_area(size_bytes: int) -> bytes:
    head = HEADER.pack(1, size_bytes // mmap.PAGESIZE - 1, 0)
    return head + bytes(mmap.PAGESIZE - len(head) - len(MAGIC)) + MAGIC


@contextlib.contextmanager
def zram_swap(size_bytes: int) -> Iterator[None]:
    """Swap to a disk of its own; skips the test where there can be none."""
    try:
        number = (CONTROL / "hot_add").read_text().strip()
    except OSError as error:
        pytest.skip(f"zram: {error.strerror}")
    disk, settings = Path(f"/dev/zram{number}"), Path(f"/sys/block/zram{number}")
    library = ctypes.CDLL(None, use_errno=True)
    try:
        (settings / "disksize").write_text(str(size_bytes))
        disk.write_bytes(_swap_area(size_bytes))
        if library.swapon(bytes(disk), 0):
            pytest.skip(f"zram: swapon: {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            library.swapoff(bytes(disk))
    finally:
        (settings / "reset").write_text("1")
        (CONTROL / "hot_remove").write_text(number)
