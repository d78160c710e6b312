"""A control group with a CPU limit for one process and its children, in version 1 or 2 of control groups.

It is made below this process's own group, or below the nearest group above that may have limited groups, and removed
again, whatever is still in it. Its name says who made it, so that the groups of a killed process can be told from those
of a running one. Needs the right to write to the control group file system, which mostly means root.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rootwalk.graph.process_tree import find_descendants
from rootwalk.instrumentation.errors import UnavailableError

__all__ = ["CpuLimit", "GroupTree", "find_group_tree", "remove_leftovers"]

PROC: Final = Path("/proc")
# The kernel's own default period: the longest pause of a limited process is a part of it.
PERIOD_US: Final = 100_000
NAME: Final = re.compile(r"rootwalk-limit-(\d+)-(\d+)")
# A process that has been killed leaves its group a moment after it is gone for others.
REMOVE_TIMEOUT_S: Final = 5.0
REMOVE_RETRY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class GroupTree:
    """Where groups with the cpu controller are.

    Attributes:
        version: 1 or 2.
        mount: Folder that the control groups are mounted on.
        own: This process's own group, `mount` or below it.
    """

    version: int
    mount: Path
    own: Path

    def parents(self) -> Iterator[Path]:
        """Yield the groups that a new one could be made in: this process's own, then those above it."""
        yield self.own
        for above in self.own.parents:
            if not above.is_relative_to(self.mount):
                return
            yield above


def find_group_tree(proc: Path = PROC) -> GroupTree:
    """Return where the cpu controller's groups are.

    Args:
        proc: Folder of the process file system.

    Raises:
        UnavailableError: If no mounted control group has the cpu controller.
    """
    for version, mount, root in _read_mounts(proc):
        path = _read_own_path(proc, version)
        if path is None or not Path(path).is_relative_to(root):
            continue
        own = mount / Path(path).relative_to(root)
        if version == 1 or any(
            "cpu" in _read_words(above / "cgroup.controllers")
            for above in GroupTree(version, mount, own).parents()
        ):
            return GroupTree(version, mount, own)
    raise UnavailableError(
        "cannot limit a rank's CPU: saw no control group with the cpu controller; needs one mounted",
        reason="NO_CPU_CONTROLLER",
        hint="in a container, give it the host's control groups: docker run --privileged --cgroupns=host",
    )


def _read_mounts(proc: Path) -> list[tuple[int, Path, str]]:
    """Return (version, mount point, its root within the tree) of the mounts that may have cpu, version 1 first."""
    found = []
    for line in (proc / "self/mountinfo").read_text(encoding="utf-8").splitlines():
        place, _, source = line.partition(" - ")
        root, mount = (_unescape(word) for word in place.split()[3:5])
        kind, *_, options = source.split(" ", 2)
        if kind == "cgroup" and "cpu" in options.split(","):
            found.append((1, Path(mount), root))
        elif kind == "cgroup2":
            found.append((2, Path(mount), root))
    return sorted(found, key=lambda item: item[0])


def _unescape(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def _read_own_path(proc: Path, version: int) -> str | None:
    for line in (proc / "self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" if version == 2 else "cpu" in controllers.split(","):
            return path
    return None


class CpuLimit:
    """One group with a limit; `create`, `add_tree`, `remove`.

    Attributes:
        group: Its folder.
        cpus: CPU time that its processes may use together, CPU seconds per second.
    """

    def __init__(self, tree: GroupTree, group: Path, cpus: float, *, is_enabled_here: bool) -> None:
        self.group = group
        self.cpus = cpus
        self._tree = tree
        self._is_enabled_here = is_enabled_here

    @classmethod
    def create(cls, tree: GroupTree, cpus: float) -> CpuLimit:
        """Make a group with the limit and no process in it.

        Raises:
            UnavailableError: If this process may not, or no group here may have limited groups below it.
        """
        refusals: list[str] = []
        for parent in tree.parents():
            enabled_here = False
            try:
                if tree.version == 2:
                    enabled_here = _enable_cpu(parent)
                limit = cls(tree, parent / _own_name(), cpus, is_enabled_here=enabled_here)
                limit.group.mkdir()
            except OSError as error:
                refusals.append(f'"{parent}": {_reason(error)}')
                continue
            try:
                limit._write_limit()
            except OSError as error:
                refusals.append(f'"{limit.group}": {_reason(error)}')
                limit.remove()
                continue
            return limit
        raise UnavailableError(
            f"cannot limit a rank's CPU: saw {', '.join(refusals)}; needs a control group to make a limited one in",
            reason="NO_CGROUP_ACCESS",
            hint="run as root; in a container, docker run --privileged --cgroupns=host",
        )

    def _write_limit(self) -> None:
        quota_us = round(self.cpus * PERIOD_US)
        if self._tree.version == 2:
            _write(self.group / "cpu.max", f"{quota_us} {PERIOD_US}")
        else:
            _write(self.group / "cpu.cfs_period_us", str(PERIOD_US))
            _write(self.group / "cpu.cfs_quota_us", str(quota_us))

    def add_tree(self, pid: int) -> int:
        """Move a process and all below it into the group; return how many there were.

        Raises:
            UnavailableError: If a process cannot be moved.
        """
        moved: set[int] = set()
        # A process that is being moved may start another one meanwhile.
        while waiting := {pid, *find_descendants(pid)} - moved:
            for member in waiting:
                try:
                    _write(self.group / "cgroup.procs", str(member))
                except ProcessLookupError:
                    pass  # it has ended
                except OSError as error:
                    raise UnavailableError(
                        f'cannot move process {member} to "{self.group}": {_reason(error)}; needs the right to',
                        reason="NO_CGROUP_ACCESS",
                    ) from error
            moved |= waiting
        return len(moved)

    def remove(self) -> None:
        """Let everything in the group go on without the limit and remove the group; safe twice."""
        _remove_group(self.group, self._tree.own)
        siblings = [path for path in self.group.parent.iterdir() if NAME.fullmatch(path.name)]
        if self._is_enabled_here and not siblings:
            self._is_enabled_here = False
            with contextlib.suppress(OSError):  # others have begun to use it
                _write(self.group.parent / "cgroup.subtree_control", "-cpu")


def remove_leftovers(tree: GroupTree, proc: Path = PROC) -> list[Path]:
    """Remove the groups of processes that were killed before they could, and return those.

    Args:
        tree: Where to look.
        proc: Folder of the process file system.
    """
    removed = []
    for parent in tree.parents():
        for path in parent.glob("rootwalk-limit-*"):
            name = NAME.fullmatch(path.name)
            if name is None or _start_ticks(proc, name[1]) == name[2]:
                continue
            with contextlib.suppress(OSError):  # of another user
                _remove_group(path, tree.own)
                removed.append(path)
    return removed


def _own_name() -> str:
    pid = str(os.getpid())
    return f"rootwalk-limit-{pid}-{_start_ticks(PROC, pid)}"


def _start_ticks(proc: Path, pid: str) -> str | None:
    """Return when a process began, clock ticks since boot: it tells one from a later one with its number.

    Source:
        man 5 proc: field 22 of stat; the command name, which may hold anything, is field 2.
    """
    try:
        stat = (proc / pid / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def _enable_cpu(parent: Path) -> bool:
    """Let the groups below have CPU limits; return whether they could not before.

    Raises:
        OSError: EBUSY if the group has processes of its own, which version 2 forbids then, or as the kernel says.
    """
    if "cpu" in _read_words(parent / "cgroup.subtree_control"):
        return False
    if "cpu" not in _read_words(parent / "cgroup.controllers"):
        raise OSError(errno.ENODEV, "no cpu controller")
    _write(parent / "cgroup.subtree_control", "+cpu")
    return True


def _remove_group(group: Path, refuge: Path) -> None:
    """Move what is in a group elsewhere and remove the group.

    Raises:
        OSError: If it is still in use after 5 s, or may not be removed.
    """
    deadline_s = time.monotonic() + REMOVE_TIMEOUT_S
    while group.is_dir():
        for pid in _read_words(group / "cgroup.procs"):
            with contextlib.suppress(OSError):  # it has ended, or the removal below says why not
                _write(refuge / "cgroup.procs", pid)
        try:
            group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(REMOVE_RETRY_S)


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
