"""A machine's /proc and mounted control groups, made by hand in a folder."""

from __future__ import annotations

from pathlib import Path

V1_MOUNT = (
    "30 23 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct"
)
V1_OTHER = "31 23 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
V2_MOUNT = "32 23 0:31 {top} {folder} rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate"


class FakeCgroups:
    """A root folder with mounts, processes and groups.

    Args:
        root: An empty folder.
        version: `v1`, `v2`, or `hybrid`: version 1 with an empty version 2 beside it.
        top: The group that is mounted, as a container sees it.
    """

    def __init__(self, root: Path, version: str, top: str = "/") -> None:
        self.root = root
        self.is_unified = version == "v2"
        self._version = version
        unified = "/sys/fs/cgroup" if version == "v2" else "/sys/fs/cgroup/unified"
        lines = ["22 1 0:20 / /proc rw - proc proc rw"]
        if version != "v2":
            lines += [V1_OTHER, V1_MOUNT.format(top=top)]
        if version != "v1":
            lines.append(V2_MOUNT.format(top=top, folder=unified))
        self.mount = root / ("sys/fs/cgroup" if self.is_unified else "sys/fs/cgroup/cpu,cpuacct")
        self.mount.mkdir(parents=True)
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")
        if self.is_unified:
            (self.mount / "cgroup.controllers").write_text("cpuset cpu io memory\n")
            (self.mount / "cpu.stat").write_text("usage_usec 1\nuser_usec 1\nsystem_usec 0\n")
        else:
            self.group("", None)
        self.move("self", "/")

    def move(self, pid: int | str, path: str) -> None:
        """Put a process into a group."""
        lines = {
            "v1": ["5:memory:/elsewhere", f"4:cpu,cpuacct:{path}"],
            "v2": [f"0::{path}"],
            "hybrid": ["5:memory:/elsewhere", f"4:cpu,cpuacct:{path}", "0::/"],
        }[self._version]
        folder = self.root / "proc" / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "cgroup").write_text("\n".join(lines) + "\n")

    def group(
        self, path: str, quota_us: int | None, *, counts: tuple[int, int, int] = (0, 0, 0)
    ) -> Path:
        """Make or change a group below the mounted one; counts are periods, throttled periods, throttled us."""
        folder = self.mount / path
        folder.mkdir(parents=True, exist_ok=True)
        periods, throttled, us = counts
        if self.is_unified:
            (folder / "cpu.weight").write_text("100\n")
            (folder / "cpu.max").write_text(f"{'max' if quota_us is None else quota_us} 100000\n")
            time = f"throttled_usec {us}\nnr_bursts 0\nburst_usec 0"
            head = "usage_usec 5\nuser_usec 5\nsystem_usec 0\n"
        else:
            (folder / "cpu.cfs_quota_us").write_text(f"{-1 if quota_us is None else quota_us}\n")
            (folder / "cpu.cfs_period_us").write_text("100000\n")
            time, head = f"throttled_time {us * 1000}", ""
        (folder / "cpu.stat").write_text(
            f"{head}nr_periods {periods}\nnr_throttled {throttled}\n{time}\n"
        )
        return folder
