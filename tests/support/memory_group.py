"""A control group with little memory, version 1 or 2, for a process that shall be killed for taking more."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
LIMIT_BYTES = 96_000_000
REMOVE_DEADLINE_S = 5.0


def find_memory_root() -> tuple[Path, str] | None:
    """Return the hierarchy with the memory controller and the name of its limit; None without the right to use it."""
    first, unified = ROOT / "memory", ROOT / "cgroup.subtree_control"
    if os.access(first, os.W_OK) and (first / "memory.limit_in_bytes").exists():
        return first, "memory.limit_in_bytes"
    if os.access(unified, os.W_OK) and "memory" in unified.read_text().split():
        return ROOT, "memory.max"
    return None


@contextlib.contextmanager
def memory_group(name: str) -> Iterator[Path | None]:
    """Make a group for the length of a block; None where none can be made."""
    found = find_memory_root()
    if found is None:
        yield None
        return
    folder = found[0] / name
    folder.mkdir()
    try:
        (folder / found[1]).write_text(str(LIMIT_BYTES))
        yield folder
    finally:
        deadline = time.monotonic() + REMOVE_DEADLINE_S
        while folder.exists():
            try:
                folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
