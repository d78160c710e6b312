"""System calls by number, of the architectures that Rootwalk runs on: what a thread that blocks in one waits for.

Only calls that can block for long are listed. Numbers never change on an architecture.

Source: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h (arm64), Linux 6.18.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

__all__ = ["CALL_KINDS", "CallKind", "call_kinds", "call_names"]

# As in `programs/sched.h`.
CALL_KINDS: Final = 512


class CallKind(IntEnum):
    """`CALL_*` of `programs/sched.h`: what a call takes that tells what it waits for."""

    FILE = 1
    POLL = 2
    FUTEX = 3


_FILE_CALLS: Final = frozenset({
    "read", "write", "ioctl", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev", "preadv2", "pwritev2",
    "sendfile", "splice", "connect", "accept", "accept4", "sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg",
    "recvmmsg", "fcntl", "flock", "fsync", "fdatasync", "sync_file_range", "fallocate", "ftruncate", "getdents64",
    "close", "copy_file_range", "fstat",
})  # fmt: skip
_OF_NAME: Final[Mapping[str, CallKind]] = {
    **dict.fromkeys(_FILE_CALLS, CallKind.FILE),
    "poll": CallKind.POLL,
    "ppoll": CallKind.POLL,
    "futex": CallKind.FUTEX,
}

_X86_64: Final[Mapping[int, str]] = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 9: "mmap",
    10: "mprotect", 11: "munmap", 12: "brk", 16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev",
    21: "access", 23: "select", 26: "msync", 28: "madvise", 34: "pause", 35: "nanosleep", 40: "sendfile",
    42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 56: "clone",
    58: "vfork", 61: "wait4", 65: "semop", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 76: "truncate",
    77: "ftruncate", 82: "rename", 83: "mkdir", 84: "rmdir", 87: "unlink", 128: "rt_sigtimedwait",
    130: "rt_sigsuspend", 162: "sync", 202: "futex", 217: "getdents64", 220: "semtimedop", 230: "clock_nanosleep",
    232: "epoll_wait", 247: "waitid", 257: "openat", 262: "newfstatat", 263: "unlinkat", 264: "renameat",
    270: "pselect6", 271: "ppoll", 275: "splice", 277: "sync_file_range", 281: "epoll_pwait", 285: "fallocate",
    288: "accept4", 295: "preadv", 296: "pwritev", 299: "recvmmsg", 306: "syncfs", 307: "sendmmsg",
    316: "renameat2", 326: "copy_file_range", 327: "preadv2", 328: "pwritev2", 332: "statx", 435: "clone3",
    426: "io_uring_enter", 437: "openat2", 441: "epoll_pwait2", 449: "futex_waitv", 455: "futex_wait",
}  # fmt: skip

_ARM64: Final[Mapping[int, str]] = {
    21: "epoll_ctl", 22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdirat", 35: "unlinkat",
    38: "renameat", 45: "truncate", 46: "ftruncate", 47: "fallocate", 48: "faccessat", 56: "openat", 57: "close",
    61: "getdents64", 63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64",
    69: "preadv", 70: "pwritev", 71: "sendfile", 72: "pselect6", 73: "ppoll", 76: "splice", 79: "newfstatat",
    80: "fstat", 81: "sync", 82: "fsync", 83: "fdatasync", 84: "sync_file_range", 95: "waitid", 98: "futex",
    101: "nanosleep", 115: "clock_nanosleep", 133: "rt_sigsuspend", 137: "rt_sigtimedwait", 192: "semtimedop",
    193: "semop", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg",
    214: "brk", 215: "munmap", 220: "clone", 222: "mmap", 226: "mprotect", 227: "msync", 233: "madvise",
    242: "accept4", 243: "recvmmsg", 260: "wait4", 267: "syncfs", 269: "sendmmsg", 276: "renameat2",
    285: "copy_file_range", 286: "preadv2", 287: "pwritev2", 291: "statx", 435: "clone3", 426: "io_uring_enter",
    437: "openat2", 441: "epoll_pwait2", 449: "futex_waitv", 455: "futex_wait",
}  # fmt: skip

_BY_MACHINE: Final = {"x86_64": _X86_64, "aarch64": _ARM64}


def call_names(machine: str = "") -> Mapping[int, str]:
    """Return names by number; empty for an architecture that is not known.

    Args:
        machine: As `platform.machine()` names it; this one's by default.
    """
    return _BY_MACHINE.get(machine or platform.machine(), {})


def call_kinds(machine: str = "") -> bytes:
    """Return the kernel program's table: a `CallKind` or 0 for each number below `CALL_KINDS`."""
    table = bytearray(CALL_KINDS)
    for number, name in call_names(machine).items():
        table[number] = _OF_NAME.get(name, 0)
    return bytes(table)
