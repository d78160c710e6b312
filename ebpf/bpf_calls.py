"""The kernel's own interface to maps, whichever loader made them: the system call `bpf`.

Source: include/uapi/linux/bpf.h; commands and the layouts of `union bpf_attr` never change.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence

__all__ = ["attach_functions", "delete", "enable_statistics", "lookup", "lookup_batch", "update"]

LOOKUP, UPDATE, DELETE, LOOKUP_BATCH, TAKE_BATCH, LINK, ENABLE_STATS = 1, 2, 3, 24, 25, 28, 32
MANY_FUNCTIONS, AT_RETURN = 48, 1  # BPF_TRACE_UPROBE_MULTI, BPF_F_UPROBE_MULTI_RETURN
# The common table of system calls; x86 has its own.
CALL_NUMBER = 321 if platform.machine() == "x86_64" else 280

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
Buffer = ctypes.Array[ctypes.c_char]


class _Element(ctypes.Structure):
    _fields_ = (
        ("map_fd", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class _Batch(ctypes.Structure):
    _fields_ = (
        ("in_batch", ctypes.c_uint64),
        ("out_batch", ctypes.c_uint64),
        ("keys", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("map_fd", ctypes.c_uint32),
        ("elem_flags", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class _Functions(ctypes.Structure):
    _fields_ = (
        ("prog_fd", ctypes.c_uint32),
        ("target_fd", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("path", ctypes.c_uint64),
        ("offsets", ctypes.c_uint64),
        ("ref_ctr_offsets", ctypes.c_uint64),
        ("cookies", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("uprobe_flags", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
    )


def lookup(fd: int, key: Buffer, value: Buffer) -> int:
    """Read an element into `value`; return 0 or the error number."""
    attributes = _Element(fd, ctypes.addressof(key), ctypes.addressof(value))
    return _call(LOOKUP, attributes)[1]


def update(fd: int, key: Buffer, value: Buffer) -> int:
    """Write an element; return 0 or the error number."""
    attributes = _Element(fd, ctypes.addressof(key), ctypes.addressof(value))
    return _call(UPDATE, attributes)[1]


def delete(fd: int, key: Buffer) -> int:
    """Remove an element; return 0 or the error number."""
    return _call(DELETE, _Element(fd, ctypes.addressof(key)))[1]


def lookup_batch(
    fd: int,
    first: Buffer | None,
    cursor: Buffer,
    keys: Buffer,
    values: Buffer,
    capacity: int,
    *,
    take: bool = False,
) -> tuple[int, int]:
    """Read the next elements.

    Args:
        fd: The map.
        first: Where the last call stopped; None to begin.
        cursor: Where this one stops.
        keys: Room for as many keys as `capacity`.
        values: The same for values.
        capacity: How many at most.
        take: Remove them.

    Returns:
        How many were read, and 0 or the error number; ENOENT with the last ones.
    """
    attributes = _Batch(
        ctypes.addressof(first) if first is not None else 0,
        ctypes.addressof(cursor),
        ctypes.addressof(keys),
        ctypes.addressof(values),
        capacity,
        fd,
    )
    _, code = _call(TAKE_BATCH if take else LOOKUP_BATCH, attributes)
    return attributes.count, code


def attach_functions(
    program: int, path: bytes, offsets: Sequence[int], cookies: Sequence[int], *, is_return: bool
) -> tuple[int, int]:
    """Attach a program to places in a file, in all processes (since Linux 6.6).

    Returns:
        A descriptor that keeps it attached, and 0 or the error number.
    """
    name = ctypes.create_string_buffer(path)
    places = (ctypes.c_uint64 * len(offsets))(*offsets)
    told = (ctypes.c_uint64 * len(cookies))(*cookies)
    attributes = _Functions(
        prog_fd=program,
        attach_type=MANY_FUNCTIONS,
        path=ctypes.addressof(name),
        offsets=ctypes.addressof(places),
        cookies=ctypes.addressof(told),
        count=len(offsets),
        uprobe_flags=AT_RETURN if is_return else 0,
    )
    return _call(LINK, attributes)


def enable_statistics() -> int | None:
    """Switch on run-time statistics of programs until the descriptor is closed; None when refused."""
    run_time = (ctypes.c_uint32 * 1)(0)
    descriptor, code = _call(ENABLE_STATS, run_time)
    return None if code else descriptor


def _call(
    command: int, attributes: ctypes.Structure | ctypes.Array[ctypes.c_uint32]
) -> tuple[int, int]:
    """Return the result, and 0 or the error number."""
    size = ctypes.c_uint(ctypes.sizeof(attributes))
    result: int = _LIBC.syscall(
        ctypes.c_long(CALL_NUMBER), ctypes.c_int(command), ctypes.byref(attributes), size
    )
    return result, ctypes.get_errno() if result < 0 else 0
