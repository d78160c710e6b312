"""Reads of another process that do not wait for a file system that may not answer.

A read of memory that a file backs may fetch the page, and so may wait for a server or a FUSE daemon that is gone: the
very thing that a stuck rank often waits for. Not read are devices, files below FUSE (except for images and overlays of
containers, from which the whole program runs), and mounts that have kept a reader waiting before.

Source: proc(5), section mountinfo; mm/memory.c `access_remote_vm`, fs/fuse/dev.c `request_wait_answer` of Linux 6.18: a
reader whose request a FUSE daemon has taken cannot even be killed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rootwalk.ebpf.stacks.mappings import Mapping, Mappings, read_mappings
from rootwalk.ebpf.stacks.process_memory import Memory

__all__ = ["GuardedMappings", "GuardedMemory", "Mount", "SilentMounts", "read_mounts"]

FUSE = "fuse"
# Images and overlays of containers (Apptainer, rootless Podman): the program itself comes from them.
CONTAINER_FUSE = frozenset(
    {"fuse.squashfuse", "fuse.squashfuse_ll", "fuse.fuse-overlayfs", "fuse.overlayfs"}
)
# What lies on a disk or in memory of this machine, and answers or fails.
LOCAL_TYPES = frozenset({
    "bcachefs", "btrfs", "cramfs", "devtmpfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "hugetlbfs", "iso9660",
    "jfs", "overlay", "ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs", "udf", "vfat", "xfs", "zfs",
})  # fmt: skip
# Opening something below may start a mount.
WAITING_TYPES = frozenset({"autofs"})
DEVICES = "/dev/"
# A host with containers has hundreds.
MAX_MOUNTS_BYTES = 1 << 20


class Mount(NamedTuple):
    """One line of /proc/<pid>/mountinfo: where it is mounted, its device as `major:minor`, and its type."""

    point: str
    device: str
    type: str


class SilentMounts:
    """The mounts that have kept a reader waiting, by device, and the one that is read now.

    Attributes:
        entered: Device of the mount that is read now, if it is one that can keep waiting; empty for none.
    """

    def __init__(self) -> None:
        self._silent: set[str] = set()
        self.entered = ""

    def silence(self, device: str) -> None:
        """Let nothing of a mount be read any more."""
        if device:
            self._silent.add(device)

    def __contains__(self, device: object) -> bool:
        return device in self._silent


def read_mounts(pid: int, root: Path = Path("/proc")) -> list[Mount]:
    """Return the mounts that a process sees, the longest path first.

    Raises:
        OSError: If it is gone, or not ours to read.
    """
    with (root / str(pid) / "mountinfo").open(encoding="utf-8", errors="replace") as file:
        text = file.read(MAX_MOUNTS_BYTES)
    mounts = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        words, kind = left.split(" "), right.partition(" ")[0]
        if len(words) > 4 and kind:
            point = words[4].replace("\\040", " ").rstrip("/")
            mounts.append(Mount(point, words[2], kind))
    mounts.reverse()  # of mounts over each other the last one is seen
    mounts.sort(key=lambda mount: len(mount.point), reverse=True)
    return mounts


class GuardedMappings(Mappings):
    """The mappings of a process, of which only files that answer are opened.

    Args:
        pid: The process.
        root: Folder that holds the processes.
        silent: Mounts that do not answer.

    Raises:
        OSError, ValueError, IndexError: If its mappings or mounts cannot be read.
    """

    def __init__(self, pid: int, root: Path, silent: SilentMounts) -> None:
        super().__init__(pid, read_mappings(pid, root).entries, root)
        self._mounts = read_mounts(pid, root)
        self._silent = silent
        self._mount_of: dict[str, Mount | None] = {}

    def allows(self, mapping: Mapping) -> bool:
        """Return whether what is mapped may be read, and note its mount as the one that is read now."""
        self._silent.entered = ""
        if not mapping.is_file:
            return not mapping.path.startswith(("/", "[vvar", "[vsyscall"))
        if mapping.path.startswith(DEVICES):
            return False
        mount = self._mount(mapping.path)
        if mount is None or mount.device in self._silent or mount.type in WAITING_TYPES:
            return False
        if mount.type.startswith(FUSE) and mount.point and mount.type not in CONTAINER_FUSE:
            return False
        self._silent.entered = "" if mount.type in LOCAL_TYPES else mount.device
        return True

    def open(self, mapping: Mapping) -> BinaryIO:
        """Open a mapped file for reading.

        Raises:
            OSError: As `Mappings.open`, and if its file system may not answer.
        """
        if not self.allows(mapping):
            raise OSError(f"{mapping.path} may not answer")
        return super().open(mapping)

    def _mount(self, path: str) -> Mount | None:
        if path not in self._mount_of:
            self._mount_of[path] = next(
                (
                    mount
                    for mount in self._mounts
                    if path.startswith(mount.point) and path[len(mount.point)] == "/"
                ),
                None,
            )
        return self._mount_of[path]


class GuardedMemory:
    """A process's memory, of which only what answers is read.

    Args:
        memory: All of it.
        find: Gives the mapping at an address, None where nothing is mapped; whether the address is one that was asked
            for, and not just where a read would go on.
        allows: Says whether a mapping may be read.
    """

    def __init__(
        self,
        memory: Memory,
        find: Callable[[int, bool], Mapping | None],
        allows: Callable[[Mapping], bool],
    ) -> None:
        self._memory = memory
        self._find = find
        self._allows = allows

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address; fewer, or none, where they cannot be read."""
        found = b""
        begin = address
        while size > 0:
            mapping = self._find(address, address == begin)
            if mapping is None or not self._allows(mapping):
                break
            wanted = min(size, mapping.end - address)
            data = self._memory.read(address, wanted)
            found = found + data if found else data
            if len(data) < wanted:
                break
            address, size = address + wanted, size - wanted
        return found
