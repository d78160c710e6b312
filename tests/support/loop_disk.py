"""A disk of its own for one test: a loop device on a file, and a limit on the disk below it (version 1 of groups)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CONTROL = Path("/dev/loop-control")
# include/uapi/linux/loop.h
LOOP_CONFIGURE, LOOP_CLR_FD, LOOP_CTL_GET_FREE = 0x4C0A, 0x4C01, 0x4C82
DIRECT_IO = 16
CONFIG = struct.Struct("<II52xI176x64x")  # file, block size, loop_info64 with its flags, reserved
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
class LoopDisk:
    """A loop device.

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
def loop_disk(file: Path, size_bytes: int) -> Iterator[LoopDisk]:
    """Make a disk for the length of a block; skips the test where that is not allowed."""
    file.write_bytes(os.urandom(size_bytes))
    descriptor = os.open(file, os.O_RDWR)
    os.fsync(descriptor)
    disk = None
    try:
        disk = _attach(descriptor)
    except OSError as error:
        pytest.skip(f"loop device: {error.strerror}")
    finally:
        os.close(descriptor)
    device = os.open(disk, os.O_RDWR)
    try:
        yield LoopDisk(disk, disk.name, file)
    finally:
        fcntl.ioctl(device, LOOP_CLR_FD)
        os.close(device)


def _attach(file: int) -> Path:
    with CONTROL.open("rb") as control:
        for _ in range(10):  # others may take the same number in between
            path = Path(f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}")
            device = os.open(path, os.O_RDWR)
            try:
                fcntl.ioctl(device, LOOP_CONFIGURE, CONFIG.pack(file, 512, DIRECT_IO))
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            else:
                return path
            finally:
                os.close(device)
    raise OSError(errno.EBUSY, "no free loop device")


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
