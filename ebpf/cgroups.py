"""Where the control groups of a process are, their CPU limit, and for how long they were throttled by it.

Where: /proc/<pid>/cgroup names the group, /proc/self/mountinfo the folder in which the hierarchy is mounted: that of
the version 1 controller that is asked for, else version 2. A process may be moved at any moment, so its group is
looked up every time. Limits apply to everything below them: the group and all of its ancestors that this process can
see are read.

What: cpu.stat counts enforcement periods (100 ms by default), those in which the group had to stop, and for how long it
stood. Both versions add the time up over CPUs, when each CPU's part may go on again: a group whose threads stand on
three CPUs for 50 ms counts 150 ms. `stood_ns` turns that into time of the clock. A group that several ranks share tells
each of them the same.

Cost: two or three small files a rank and look, about 60 us.

Source: kernel/sched/fair.c (`unthrottle_cfs_rq` adds to `throttled_time`), Documentation/scheduler/sched-bwc.rst,
Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rootwalk.ebpf.kernel_files import read_text

__all__ = ["CgroupReader", "GroupLevel", "LevelCounts", "Limit", "stood_ns"]

USEC_NS = 1_000


@dataclass(frozen=True, slots=True)
class Limit:
    """CPU time that a group may use in each period, ns."""

    quota_ns: int
    period_ns: int

    @property
    def cpus(self) -> float:
        """Return the limit as a number of CPUs."""
        return self.quota_ns / self.period_ns


@dataclass(frozen=True, slots=True)
class LevelCounts:
    """What cpu.stat has counted since the group was made.

    Attributes:
        periods: Enforcement periods in which the group wanted to run.
        throttled_periods: Those in which it had to stop.
        throttled_ns: For how long it stood, all CPUs added up, ns.
    """

    periods: int
    throttled_periods: int
    throttled_ns: int


@dataclass(frozen=True, slots=True)
class GroupLevel:
    """A group that a process is in, or an ancestor of it.

    Attributes:
        folder: Where its files are.
        is_unified: Whether they are version 2's.
    """

    folder: str
    is_unified: bool


@dataclass(frozen=True, slots=True)
class _Mount:
    folder: str
    top: str  # the group that is mounted there
    controllers: frozenset[str]  # of version 1; version 2 has none of its own

    @property
    def is_unified(self) -> bool:
        return not self.controllers


def stood_ns(counts: LevelCounts, limit: Limit | None) -> int:
    """Return for how long a group could not run, from what cpu.stat counted meanwhile, ns of the clock.

    A group that uses its quota q up on n CPUs at once runs for q / n of a period P and then stands on all of them:
    cpu.stat counts S = n P - q for that, which makes n known, and P - q / n = P S / (S + q) is what passed. A group
    that rests in between stands for less than that on one CPU, and S is the time itself: the smaller of the two is
    right in both cases, and never too long for one thread.

    Args:
        counts: Differences between two looks.
        limit: The limit in between; None when it was not read (then S).
    """
    periods, summed_ns = counts.throttled_periods, counts.throttled_ns
    if limit is None or periods <= 0 or summed_ns <= 0:
        return summed_ns
    quota_ns = periods * limit.quota_ns
    return min(summed_ns, periods * limit.period_ns * summed_ns // (summed_ns + quota_ns))


class CgroupReader:
    """Reads control groups of processes.

    Args:
        root: Where /proc and the mounted hierarchies are.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._mounts = _read_mounts(root)

    @property
    def is_mounted(self) -> bool:
        """Return whether any hierarchy that could hold the cpu controller can be seen."""
        return any(mount.is_unified or "cpu" in mount.controllers for mount in self._mounts)

    @property
    def backend(self) -> str | None:
        """Return `cgroup1` or `cgroup2`; None where no hierarchy with the cpu controller is mounted."""
        return self.backend_of("cpu")

    def backend_of(self, controller: str) -> str | None:
        """Return `cgroup1` or `cgroup2`, whichever has a controller; None where no mounted hierarchy has it."""
        if any(controller in mount.controllers for mount in self._mounts):
            return "cgroup1"
        for mount in self._mounts:
            found = read_text(f"{mount.folder}/cgroup.controllers") if mount.is_unified else ""
            if controller in found.split():
                return "cgroup2"
        return None

    @property
    def has_bandwidth(self) -> bool:
        """Return whether the kernel limits CPU time; in version 2 only groups below the first can tell."""
        for mount in self._mounts:
            if "cpu" in mount.controllers:
                return read_counts(GroupLevel(mount.folder, is_unified=False)) is not None
        own = self.levels("self") or []
        limited = [level for level in own if Path(level.folder, "cpu.weight").exists()]
        return all(Path(level.folder, "cpu.max").exists() for level in limited)

    def levels(self, pid: int | str) -> list[GroupLevel] | None:
        """Return a process's group and its ancestors, innermost first; None when they cannot be seen from here."""
        return self.levels_in(read_text(f"{self._root}/proc/{pid}/cgroup"), "cpu")

    def levels_in(self, text: str, controller: str | None) -> list[GroupLevel] | None:
        """Return the group and its ancestors that a process's `cgroup` file names, innermost first.

        Args:
            text: The file.
            controller: The version 1 hierarchy to prefer to version 2; None for version 2 alone.
        """
        found = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
        for _, controllers, path in found:
            if controller is not None and controller in controllers.split(","):
                return self._levels_of(path, controller)
        for number, _, path in found:
            if number == "0":
                return self._levels_of(path, None)
        return None

    def _levels_of(self, path: str, controller: str | None) -> list[GroupLevel] | None:
        for mount in self._mounts:
            below = _below(path, mount.top)
            is_match = mount.is_unified if controller is None else controller in mount.controllers
            if not is_match or below is None:
                continue
            parts = below.split("/") if below else []
            return [
                GroupLevel("/".join([mount.folder, *parts[:depth]]), mount.is_unified)
                for depth in range(len(parts), -1, -1)
            ]
        return None


def read_counts(level: GroupLevel) -> LevelCounts | None:
    """Return what a group has counted; None when it is gone, or is never limited."""
    counts: dict[str, int] = {}
    for line in read_text(f"{level.folder}/cpu.stat").splitlines():
        key, _, value = line.partition(" ")
        if value.isdigit():
            counts[key] = int(value)
    if "nr_throttled" not in counts or "nr_periods" not in counts:
        return None
    throttled_ns = (
        counts.get("throttled_usec", 0) * USEC_NS
        if level.is_unified
        else counts.get("throttled_time", 0)
    )
    return LevelCounts(counts["nr_periods"], counts["nr_throttled"], throttled_ns)


def read_limit(level: GroupLevel) -> Limit | None:
    """Return a group's own limit; None when it has none."""
    if level.is_unified:
        words = read_text(f"{level.folder}/cpu.max").split()
    else:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [read_text(f"{level.folder}/{name}").strip() for name in names]
    if len(words) != 2 or not all(word.isdigit() and int(word) > 0 for word in words):
        return None  # "max", "-1", or no such file
    return Limit(int(words[0]) * USEC_NS, int(words[1]) * USEC_NS)


def find_tightest(levels: Sequence[GroupLevel]) -> Limit | None:
    """Return the limit that lets a process have the fewest CPUs; None when no level has one."""
    limits = [limit for level in levels if (limit := read_limit(level)) is not None]
    return min(limits, key=lambda limit: limit.cpus, default=None)


def _below(path: str, top: str) -> str | None:
    """Return a group's path below the mounted one; None when it is not below it."""
    path, top = path.rstrip("/"), top.rstrip("/")
    if path != top and not path.startswith(top + "/"):
        return None
    below = path[len(top) + 1 :]
    return None if ".." in below.split("/") else below


def _read_mounts(root: Path) -> list[_Mount]:
    """Return where version 1 controllers and version 2 are mounted.

    Source:
        proc_pid_mountinfo(5): ... (4) root, (5) mount point, ... a lone "-", file system, source, super options.
    """
    mounts = []
    text = read_text(f"{root}/proc/self/mountinfo")
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, *rest) = before.split(), after.split() or [""]
        if len(fields) < 5 or not rest:
            continue
        if kind in ("cgroup", "cgroup2"):
            top, folder = (_unescape(field) for field in fields[3:5])
            controllers = frozenset(rest[-1].split(",") if kind == "cgroup" else ())
            mounts.append(_Mount(str(root / folder.lstrip("/")), top, controllers))
    return mounts


def _unescape(field: str) -> str:
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        field = field.replace(code, character)
    return field
