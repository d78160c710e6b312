"""A disk of one's own whose requests can be counted and made slow: by a limit on the disk below (groups, version 1)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.loop_disk import loop_disk

# include/uapi/linux/loop.h; without it the pages of the file below are read ahead.
LOOP_SET_DIRECT_IO = 0x4C08
SYS_BLOCK = Path("/sys/block")
SECTOR_BYTES = 512
BLKIO = Path("/sys/fs/cgroup/blkio")
REMOVE_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class Account:
    """What the kernel itself has counted of a disk: requests that read, their bytes, and their time added up, ms."""

    reads: int
    read_bytes: int
    read_ms: int

    def __sub__(self, before: Account) -> Account:
        return Account(
            self.reads - before.reads,
            self.read_bytes - before.read_bytes,
            self.read_ms - before.read_ms,
        )


@dataclass(frozen=True, slots=True)
class SlowDisk:
    """The disk.

    Attributes:
        path: The device.
        name: Its name, as the kernel has it.
        file: What is below it.
    """

    path: Path
    name: str
    file: Path

    def read_account(self) -> Account:
        """Return the kernel's own counters (Documentation/block/stat.rst)."""
        fields = (SYS_BLOCK / self.name / "stat").read_text().split()
        return Account(int(fields[0]), int(fields[2]) * SECTOR_BYTES, int(fields[3]))

    def set_scheduler(self, name: str) -> None:
        """Put a scheduler before the disk; skips the test where the kernel does not have it."""
        scheduler = SYS_BLOCK / self.name / "queue/scheduler"
        if name not in scheduler.read_text():
            pytest.skip(f"block: no scheduler {name}")
        scheduler.write_text(name)


@contextlib.contextmanager
def slow_disk(file: Path, size_bytes: int) -> Iterator[SlowDisk]:
    """Make a disk for the length of a block; each of its requests is one of the disk below."""
    with loop_disk(file, size_bytes) as device:
        with file.open("r+b") as below:  # else nothing is there to read
            below.write(os.urandom(size_bytes))
            os.fsync(below.fileno())
        with device.open("rb") as opened:
            fcntl.ioctl(opened, LOOP_SET_DIRECT_IO, 1)
            try:
                os.pread(opened.fileno(), 1, 0)
            except OSError:  # 5.15 takes the word of an overlay that cannot, 6.1 does not
                pytest.skip("loop device: the file system below has no direct reads")
        yield SlowDisk(device, device.name, file)


def disk_below(file: Path) -> str:
    """Return the numbers of the disk that a file lies on; skips the test where that is none."""
    device = file.stat().st_dev
    folder = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if (folder / "partition").exists():
        folder = folder.resolve().parent
    if not (folder / "dev").exists():
        pytest.skip("blkio: the file is on no disk")
    return (folder / "dev").read_text().strip()


@contextlib.contextmanager
def reads_limited(name: str, device: str, per_second: int) -> Iterator[Path]:
    """Make a group that may read so often from a disk, for the length of a block; skips where none can be made."""
    if not (BLKIO / "blkio.throttle.io_serviced").exists() or not os.access(BLKIO, os.W_OK):
        pytest.skip("blkio: no version 1 group with throttling")
    folder = BLKIO / name
    folder.mkdir()
    try:
        (folder / "blkio.throttle.read_iops_device").write_text(f"{device} {per_second}")
        yield folder
    finally:
        deadline_s = time.monotonic() + REMOVE_DEADLINE_S
        while folder.exists():
            try:
                folder.rmdir()
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)
