"""Control groups for tests, in whatever hierarchy this machine has for a question."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.cgroups import CgroupReader
from rootwalk.ebpf.kernel_files import read_text

REMOVE_DEADLINE_S = 5.0


@contextlib.contextmanager
def own_group(name: str, controller: str | None) -> Iterator[tuple[Path, bool]]:
    """Make a group below this process's own topmost one; skips the test where none can be made.

    Args:
        name: Of the group.
        controller: The version 1 hierarchy to prefer; None for version 2.

    Yields:
        Its folder, and whether it is version 2's.
    """
    levels = CgroupReader().levels_in(read_text("/proc/self/cgroup"), controller)
    if levels is None:
        pytest.skip("cgroup: NO_CGROUP_ACCESS: no such hierarchy")
    folder = Path(levels[-1].folder, name)
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("cgroup: NO_CGROUP_ACCESS: cannot make a group")
    try:
        yield folder, levels[-1].is_unified
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + REMOVE_DEADLINE_S
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def move(pid: int, folder: Path) -> None:
    """Put a process into a group; skips the test where that is not allowed."""
    try:
        Path(folder, "cgroup.procs").write_text(str(pid))
    except PermissionError:
        pytest.skip("cgroup: NO_CGROUP_ACCESS: cannot move a process")


def unique(name: str) -> str:
    """Return a name that no other test run uses at the same time."""
    return f"rootwalk-test-{name}-{os.getpid()}"
