"""A rank's Flight Recorder dump on its way to the agent: a file beside the rank's ring, there whole or not at all.

The rank writes it by a mapping, without system calls for its bytes: what a rank reads and writes while it makes no
progress says whether it works. The agent reads it once and removes it. Standard library only.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Final

__all__ = ["MAX_FLIGHT_BYTES", "flight_path", "take_flight", "write_flight"]

# More than `flight_dump` ever writes.
MAX_FLIGHT_BYTES: Final = 2 * 1024 * 1024


def flight_path(ring: Path) -> Path:
    """Return where the dump of a ring's rank lies."""
    return ring.with_suffix(".flight")


def write_flight(ring: Path, text: str) -> None:
    """Write a dump beside a ring, over an older one.

    Raises:
        OSError: If it cannot be written.
    """
    data = text.encode()
    draft = ring.with_suffix(".flight-draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(
            descriptor, 0, max(len(data), 1)
        )  # else a full /dev/shm is a SIGBUS later
        with mmap.mmap(descriptor, max(len(data), 1)) as memory:
            memory[: len(data)] = data
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    draft.rename(flight_path(ring))


def take_flight(ring: Path, owner: int) -> str | None:
    """Return the dump beside a ring and remove it; None where there is none, or it is not the rank's own.

    Args:
        ring: The ring's file.
        owner: User id of the ring's owner, who must own the dump too.
    """
    path = flight_path(ring)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        is_own = stat.S_ISREG(status.st_mode) and status.st_uid == owner
        if not is_own or status.st_size > MAX_FLIGHT_BYTES:
            return None
        data = os.pread(descriptor, status.st_size, 0)
        path.unlink(missing_ok=True)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return data.decode("utf-8", "replace")
