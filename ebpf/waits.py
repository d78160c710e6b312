"""What a blocked thread waited for, in words: from the system call, the file behind it, and who woke it.

    call              file                        kind
    none                                          fault (in a page fault)
    futex             in the interpreter's state  interpreter_lock, else lock
    read, recv, poll  pipe, socket, file          pipe_read, socket_read, file_read
    write, send       pipe, socket, file          pipe_write, socket_write, file_write
    fsync             file                        file_sync
    open, stat, …                                 file_metadata
    nanosleep                                     sleep
    wait4                                         child
    ioctl, read, …    character device            device

Pure. Paths and addresses stay here.
"""

from __future__ import annotations

import select
import socket
import stat
import sys
from collections.abc import Mapping
from typing import Final

from rootwalk.ebpf.events import Wait
from rootwalk.instrumentation.semconv import TrainingWaitKind as Kind
from rootwalk.instrumentation.semconv import TrainingWaitPeer

__all__ = ["device_number", "file_system_name", "is_about_files", "wait_kind", "wait_peer"]

LOOPBACK: Final = 127

_READS: Final = frozenset({
    "read", "pread64", "readv", "preadv", "preadv2", "recvfrom", "recvmsg", "recvmmsg", "accept", "accept4", "connect",
    "poll", "ppoll", "splice", "sendfile", "copy_file_range", "getdents64",
})  # fmt: skip
_WRITES: Final = frozenset({
    "write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg", "sendmmsg",
})  # fmt: skip
_SYNCS: Final = frozenset({"fsync", "fdatasync", "sync_file_range", "syncfs", "sync", "msync"})
_METADATA: Final = frozenset({
    "open", "openat", "openat2", "stat", "lstat", "fstat", "newfstatat", "statx", "access", "faccessat", "unlink",
    "unlinkat", "rename", "renameat", "renameat2", "mkdir", "mkdirat", "rmdir", "close", "truncate", "ftruncate",
    "fallocate", "fcntl", "flock",
})  # fmt: skip
_LOCKS: Final = frozenset({"futex", "futex_wait", "futex_waitv", "semop", "semtimedop"})
# Calls without a file that is known.
_OTHERS: Final[Mapping[Kind, frozenset[str]]] = {
    Kind.POLL: frozenset({
        "select", "pselect6", "poll", "ppoll", "epoll_wait", "epoll_pwait", "epoll_pwait2", "io_uring_enter",
    }),
    Kind.SLEEP: frozenset({"nanosleep", "clock_nanosleep", "pause", "rt_sigtimedwait", "rt_sigsuspend"}),
    # A parent waits in `vfork` until its child runs another program.
    Kind.CHILD: frozenset({"wait4", "waitid", "vfork", "clone", "clone3"}),
    Kind.FILE_METADATA: _METADATA,
    Kind.FILE_SYNC: _SYNCS,
    Kind.MEMORY: frozenset({"mmap", "munmap", "mprotect", "brk", "madvise"}),
}  # fmt: skip

# Types of file systems on which training data and checkpoints lie; statfs(2), include/uapi/linux/magic.h.
FILE_SYSTEMS: Final[Mapping[int, str]] = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0x01021994: "tmpfs",
    0x794C7630: "overlay",
    0x6969: "nfs",
    0x0BD00BD0: "lustre",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x65735546: "fuse",
    0x00C36400: "ceph",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0x01021997: "9p",
    0x958458F6: "hugetlbfs",
    0x73717368: "squashfs",
    0x9FA0: "proc",
    0x62656572: "sysfs",
}
_MINOR_BITS: Final = 20


def wait_kind(
    wait: Wait, call: str | None, *, is_stopped: bool = False, is_interpreter_lock: bool = False
) -> Kind:
    """Return what a thread waited for.

    Args:
        wait: As the kernel told it.
        call: Name of the system call; None for one that is not listed, or for none at all.
        is_stopped: It was stopped, wherever that was.
        is_interpreter_lock: Its futex is the one of Python's interpreter lock.
    """
    if is_stopped:
        return Kind.STOP
    if wait.call < 0:
        return Kind.FAULT
    if call in _LOCKS:
        return Kind.INTERPRETER_LOCK if is_interpreter_lock else Kind.LOCK
    if wait.mode:
        return _file_kind(wait, call)
    for kind, names in _OTHERS.items():
        if call in names:
            return kind
    return Kind.OTHER


def _file_kind(wait: Wait, call: str | None) -> Kind:
    # A socket with a timeout is polled before it is written.
    is_write = (
        call in _WRITES or wait.poll_events & (select.POLLIN | select.POLLOUT) == select.POLLOUT
    )
    if stat.S_ISSOCK(wait.mode) and wait.family != socket.AF_UNIX:
        return Kind.SOCKET_WRITE if is_write else Kind.SOCKET_READ
    # A socket of the machine itself, such as the one by which loader workers hand over tensors, is as a pipe.
    if stat.S_ISSOCK(wait.mode) or stat.S_ISFIFO(wait.mode):
        return Kind.PIPE_WRITE if is_write else Kind.PIPE_READ
    if stat.S_ISCHR(wait.mode):
        return Kind.DEVICE
    if call in _SYNCS:
        return Kind.FILE_SYNC
    if call in _METADATA:
        return Kind.FILE_METADATA
    if is_write:
        return Kind.FILE_WRITE
    return Kind.FILE_READ if call in _READS else Kind.OTHER


def file_system_name(wait: Wait) -> str | None:
    """Return the type of the file system that a wait is about; None where there is none."""
    if not (stat.S_ISREG(wait.mode) or stat.S_ISDIR(wait.mode) or stat.S_ISBLK(wait.mode)):
        return None
    return FILE_SYSTEMS.get(wait.magic, f"0x{wait.magic:x}")


def device_number(wait: Wait) -> str | None:
    """Return `major:minor` of the file system's device; None where there is none."""
    if file_system_name(wait) is None:
        return None
    return f"{wait.device >> _MINOR_BITS}:{wait.device & ((1 << _MINOR_BITS) - 1)}"


def is_about_files(wait: Wait) -> bool:
    """Return whether a wait is for a file system, or for memory that a fault brings in."""
    return wait.call < 0 or (bool(wait.mode) and file_system_name(wait) is not None)


def wait_peer(wait: Wait) -> TrainingWaitPeer | None:
    """Return where the other end of a socket is; None for no socket, or where it is not known."""
    if wait.family == socket.AF_UNIX:
        return TrainingWaitPeer.LOCAL
    if wait.family != socket.AF_INET or not wait.address:
        return None  # IPv6 addresses are not read
    first = wait.address.to_bytes(4, sys.byteorder)[0]
    return TrainingWaitPeer.LOCAL if first == LOOPBACK else TrainingWaitPeer.REMOTE
