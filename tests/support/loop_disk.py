"""A block device of one's own: a file behind a loop device, for the length of a block."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

BLOCK_BYTES = 4096


@contextlib.contextmanager
def loop_disk(file: Path, size_bytes: int) -> Iterator[Path]:
    """Make one; skips the test where that is not allowed."""
    if shutil.which("losetup") is None:
        pytest.skip("loop device: needs losetup")
    with file.open("wb") as backing:
        backing.truncate(size_bytes)
    made = subprocess.run(
        ["losetup", "--find", "--show", str(file)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("loop device: needs root")
    device = Path(made.stdout.strip())
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", str(device)], check=True)


def write_directly(device: Path, blocks: int) -> None:
    """Write so many blocks one by one, past the page cache: each is a request."""
    descriptor = os.open(device, os.O_WRONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, BLOCK_BYTES) as block:  # aligned, as such writes must be
            for number in range(blocks):
                os.pwrite(descriptor, block, 2 * number * BLOCK_BYTES)
    finally:
        os.close(descriptor)
