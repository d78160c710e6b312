"""Disks that are slow: a limit of the kernel on a disk of one's own, and a file system whose server takes its time."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gauntlet.faults.borrowed import Borrowed
from gauntlet.faults.training import TrainingBug
from rootwalk.instrumentation.errors import UnavailableError
from support.loop_disk import loop_disk
from support.slow_disk import BLKIO

DISK_BYTES = 512_000_000
FILE_BYTES = 200_000_000
SERVER = Path(__file__).with_name("slow_files.py")
READY = "ready"


class DiskBug(TrainingBug):
    """A bug that reads or writes a file on a disk of its own; the disk becomes slow when the bug is switched on.

    Args:
        bug: Its name; its setting `path` is a file of `FILE_BYTES` on that disk.
        bytes_per_s: The limit for reads and for writes; None for the disk as it is.
        is_synchronous: Whether what is written has to be on the disk before the write returns.
        who: As for all bugs.
        least_s: As for all bugs.
        settings: Of the bug.
    """

    def __init__(
        self,
        bug: str,
        bytes_per_s: int | None,
        *,
        is_synchronous: bool = False,
        who: str = "rank",
        least_s: float = 0.5,
        **settings: str | int | float,
    ) -> None:
        super().__init__(bug, who=who, least_s=least_s, **settings)
        self._bytes_per_s = bytes_per_s
        self._options = ["-o", "sync"] if is_synchronous else []
        self._made = Borrowed()
        self._numbers = ""

    def prepare(self, rank: int, folder: Path) -> None:
        """Make the disk."""
        super().prepare(rank, folder)
        limit = BLKIO / "blkio.throttle.read_bps_device"
        if self._bytes_per_s is not None and not os.access(limit, os.W_OK):
            raise UnavailableError(
                f'cannot limit a disk: "{limit}" cannot be written', reason="NO_CGROUP"
            )
        device = self._made.borrow(loop_disk(folder / "disk", DISK_BYTES))
        place = self._made.borrow(mounted(device, folder / "mounted", *self._options))
        status = device.stat()
        self._numbers = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        self.settings["path"] = str(place / "file")
        with (place / "file").open("wb") as file:
            file.write(os.urandom(FILE_BYTES))
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def resume(self) -> None:
        """Make the disk slow, and begin."""
        if self._bytes_per_s is not None:
            self._limit(self._bytes_per_s)
        super().resume()

    def pause(self) -> None:
        """Read or write no more, from a disk that is not slow."""
        super().pause()
        if self._bytes_per_s is not None:
            self._limit(0)

    def _limit(self, bytes_per_s: int) -> None:
        """Set the limit for everybody: nobody else uses this disk. 0 lifts it."""
        for kind in ("read", "write"):
            file = BLKIO / f"blkio.throttle.{kind}_bps_device"
            file.write_text(f"{self._numbers} {bytes_per_s}")

    def stop(self) -> None:
        """Lift the limit, remove the disk."""
        super().stop()
        if self._numbers:
            self._limit(0)
            self._numbers = ""
        self._made.close()


@contextlib.contextmanager
def mounted(device: Path, place: Path, *options: str) -> Iterator[Path]:
    """Make a file system on a disk and mount it for the length of a block.

    Raises:
        UnavailableError: If that is not possible here.
    """
    place.mkdir()
    for command in (
        ["mkfs.ext4", "-q", "-E", "lazy_itable_init=0", str(device)],
        ["mount", *options, str(device), str(place)],
    ):
        if shutil.which(command[0]) is None:
            raise UnavailableError(f"cannot make a disk: needs {command[0]}", reason="NO_TOOL")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UnavailableError(f"cannot make a disk: {done.stderr.strip()}", reason="NO_DISK")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


class FuseBug(TrainingBug):
    """A bug that reads a file of a file system in user space, whose server answers each read late.

    Args:
        delay_s: Of each read, while the bug is on.
        settings: Of the bug.
    """

    def __init__(self, delay_s: float, **settings: str | int | float) -> None:
        super().__init__("read_file")
        self.settings |= settings
        self._delay_s = delay_s
        self._server: subprocess.Popen[str] | None = None
        self._place: Path | None = None

    def prepare(self, rank: int, folder: Path) -> None:
        """Mount it."""
        super().prepare(rank, folder)
        self._place = folder / "fuse"
        self._place.mkdir()
        command = [sys.executable, str(SERVER), str(self._place), str(self._delay_s)]
        command += [str(folder / "bug.on")]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        said = self._server.stdout.readline().strip()
        if said != READY:
            raise UnavailableError(f"cannot mount a file system: {said}", reason="NO_FUSE")
        self.settings["path"] = str(self._place / "file")

    def stop(self) -> None:
        """Unmount it."""
        super().stop()
        if self._place is not None and os.path.ismount(self._place):
            subprocess.run(["umount", "--lazy", str(self._place)], check=False)
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None
