"""A ring's file as its reader sees it: copied by pread, never mapped, and checked before anything is believed.

A file of another user may be cut, replaced or written to at any time. Reading a mapping of it would kill the reader
(SIGBUS); a read that comes back short says so. Standard library only.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import fields
from pathlib import Path
from struct import Struct
from typing import Any, Final

from rootwalk.instrumentation.identity import Identity

__all__ = ["MAX_NUMBER", "RingFile", "decode_ring_identity", "is_communicator"]

# Times in ns, numbers of steps and of operations, and bytes are below it; more is no record of ours, and would not fit
# the signed numbers that they become.
MAX_NUMBER: Final = 1 << 62
# Ranks, pids and restarts are below it.
MAX_SMALL_NUMBER: Final = 1 << 31
# Names of jobs, hosts and services, in characters.
MAX_NAME_CHARS: Final = 1024
MAX_SIZE_DIGITS: Final = 9


class RingFile:
    """An open file of a fixed size.

    Args:
        path: The file; a link, a device, a pipe and a file of another size are refused.
        size_bytes: What a ring of this version has.

    Raises:
        ValueError: If it is not such a file.
        OSError: If it cannot be opened.

    Attributes:
        descriptor: For locks.
        owner: User id of the file's owner.
        broken: What was seen that no ring has; None for nothing. What is read of a broken ring is zero.
    """

    __slots__ = ("broken", "descriptor", "owner")

    def __init__(self, path: Path, size_bytes: int) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self.descriptor = os.open(path, flags)
        self.broken: str | None = None
        status = os.fstat(self.descriptor)
        self.owner = status.st_uid
        if not stat.S_ISREG(status.st_mode) or status.st_size != size_bytes:
            self.close()
            raise ValueError(f"a file of {status.st_size} bytes and mode {status.st_mode:o}")

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return some bytes; zeros where the file has none any more."""
        try:
            data = os.pread(self.descriptor, size_bytes, offset)
        except OSError as error:
            self.reject(f"an error of the file ({error.strerror})")
            data = b""
        if len(data) < size_bytes:
            self.reject("a file that was cut")
            data = data.ljust(size_bytes, b"\0")
        return data

    def unpack(self, struct: Struct, offset: int) -> tuple[Any, ...]:
        """Return the fields at an offset."""
        return struct.unpack(self.read(offset, struct.size))

    def pack(self, struct: Struct, offset: int, *values: int) -> None:
        """Write some fields at an offset."""
        try:
            os.pwrite(self.descriptor, struct.pack(*values), offset)
        except OSError as error:
            self.reject(f"an error of the file ({error.strerror})")

    def reject(self, saw: str) -> None:
        """Say that this is not a ring that can be read."""
        if self.broken is None:
            self.broken = saw

    def close(self) -> None:
        """Release the file; safe twice."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def decode_ring_identity(encoded: bytes) -> Identity:
    """Return the identity in a ring's header.

    Raises:
        ValueError: If it is not one that a rank writes.
    """
    try:
        said = json.loads(encoded)
    except (ValueError, RecursionError):  # how deep is too deep differs by version of Python
        raise ValueError("an identity that is no JSON") from None
    if not isinstance(said, dict):
        raise ValueError("an identity that is no object")  # noqa: TRY004  (of a file, not of a caller)
    try:
        identity = Identity(**said)
    except TypeError:
        raise ValueError("an identity with other fields") from None
    for field in fields(identity):
        value = getattr(identity, field.name)
        is_text = field.type in (str, "str")
        if not (_is_name(value) if is_text else _is_small(value)):
            raise ValueError(f"an identity whose {field.name} cannot be one")
    if identity.pid <= 0 or identity.rank < 0 or identity.world_size <= 0:
        raise ValueError("an identity with a negative number")
    return identity


def _is_name(value: object) -> bool:
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS:
        return False
    return not any(letter < " " or "\ud800" <= letter <= "\udfff" for letter in value)


def _is_small(value: object) -> bool:
    return type(value) is int and -1 <= value < MAX_SMALL_NUMBER


def is_communicator(text: str) -> bool:
    """Return whether a string can be `id|size|backend|name`: parts may be missing, but the size is a number."""
    size = text.partition("|")[2].partition("|")[0]
    return not size or (size.isascii() and size.isdigit() and len(size) <= MAX_SIZE_DIGITS)
