"""Put a finished copy of a store in its place, and clear away a copy that was not finished.

DuckDB locks a file with the POSIX locks of the process, which end with any descriptor of the file that the process
closes. So the lock that guards the exchange is taken when DuckDB has let go of the file, and the exchange is given up
when somebody wrote to it in between.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from rootwalk.otel_receiver.journal import sync_directory

__all__ = ["COMPACTING_SUFFIX", "discard_compaction", "replace_file"]

COMPACTING_SUFFIX: Final = ".compacting"


def replace_file(new: Path, path: Path, before: os.stat_result) -> bool:
    """Rename `new` over `path`, unless `path` is in use or is not as it was `before`; durable when it returns.

    Returns:
        Whether `path` is the new file now.
    """
    # For reading and writing: an exclusive lock needs the right to write.
    descriptor = os.open(path, os.O_RDWR)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        now = os.fstat(descriptor)
        is_same = (now.st_ino, now.st_size, now.st_mtime_ns) == (
            before.st_ino,
            before.st_size,
            before.st_mtime_ns,
        )
        if not is_same or path.with_name(path.name + ".wal").exists():
            return False
        os.chmod(new, now.st_mode & 0o7777)  # noqa: PTH101  (as its name says, on a path)
        new.rename(path)
        sync_directory(path.parent)
        return True
    finally:
        os.close(descriptor)


def discard_compaction(path: Path) -> None:
    """Remove what a compaction that was killed has left."""
    for suffix in ("", ".wal"):
        path.with_name(path.name + COMPACTING_SUFFIX + suffix).unlink(missing_ok=True)
