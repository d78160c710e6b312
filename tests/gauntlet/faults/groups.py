"""Limits by control groups: CPU time of a rank, or of another process."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gauntlet.case import Effect
from gauntlet.faults.processes import Hogs
from rootwalk.graph.commands.cpu_limit import CpuLimit, find_group_tree, remove_leftovers
from rootwalk.graph.commands.demo_faults import LIMIT_CPUS, Target

NS = 1_000_000_000


class Quota:
    """A limit on the CPU time of a rank and its loader.

    Args:
        cpus: CPU seconds per second.
        least: Periods in which it was held back that there have to be.
    """

    def __init__(self, cpus: float = LIMIT_CPUS, least: int = 10) -> None:
        self._cpus, self._least = cpus, least
        self._limit: CpuLimit | None = None
        self._outside = Path()
        self._pid = 0

    def prepare(self, rank: int, folder: Path) -> None:
        """Make the group."""
        tree = find_group_tree()
        remove_leftovers(tree)
        self._limit = CpuLimit.create(tree, self._cpus)
        self._outside = tree.own

    def options(self) -> list[str]:
        """Nothing in the training code."""
        return []

    def start(self, target: Target) -> None:
        """Move the rank and its children there."""
        self._pid = target.pid
        self.resume()

    def resume(self) -> None:
        """Move them there."""
        self._move(self._pid)

    def pause(self) -> None:
        """Move all out again."""
        assert self._limit is not None
        for pid in (self._limit.group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (self._outside / "cgroup.procs").write_text(pid)

    def _move(self, pid: int) -> None:
        assert self._limit is not None
        self._limit.add_tree(pid)

    def effect(self) -> Effect:
        """Return the kernel's count of periods in which it was held back."""
        assert self._limit is not None
        lines = (self._limit.group / "cpu.stat").read_text().splitlines()
        counts = dict(line.split() for line in lines)
        return Effect(int(counts["nr_throttled"]), "periods held back", self._least)

    def stop(self) -> None:
        """Remove the group."""
        if self._limit is not None:
            self._limit.remove()
            self._limit = None


class QuotaOnStranger(Quota):
    """A limit on a process that is no part of the job, at the lowest priority."""

    def __init__(self) -> None:
        super().__init__(cpus=0.01)
        self._stranger = Hogs(before=("chrt", "-i", "0"), least_s=0.0)

    def start(self, target: Target) -> None:
        """Start the process and move it."""
        self._stranger.start(target)
        for pid in self._stranger.pids():
            self._move(pid)

    def resume(self) -> None:
        """Let the process go on."""
        self._stranger.resume()

    def pause(self) -> None:
        """Stop the process, without an end."""
        self._stranger.pause()

    def stop(self) -> None:
        """End the process, remove the group."""
        self._stranger.stop()
        super().stop()
