"""Limits on the memory of a rank or of its loader, and what the kernel itself counts of them."""

from __future__ import annotations

import os
from pathlib import Path

from gauntlet.case import Effect
from gauntlet.faults.borrowed import Borrowed
from gauntlet.faults.training import TrainingBug
from rootwalk.graph.commands.demo_faults import Target
from rootwalk.instrumentation.errors import UnavailableError
from support.memory_group import ROOT, memory_group
from support.zram_swap import zram_swap

SWAP_BYTES = 2_000_000_000
NO_LIMIT = -1


class MemoryLimit(TrainingBug):
    """A limit on the memory of the process that has the bug, which puts itself into the group before it takes any.

    Args:
        bug: Its name; its setting `group` is the file to write a process id to.
        limit_ratio: Of what the group uses when the fault begins.
        counter: `events` (times that the limit was met) or `kills`.
        least: Of them.
        swap: Whether there is something to swap to.
        room_bytes: The limit is so much more than that part, or less: what cannot be given back stays below it.
        settings: Of the bug.
    """

    def __init__(
        self,
        bug: str,
        limit_ratio: float,
        counter: str,
        least: int,
        *,
        swap: bool = False,
        room_bytes: int = 0,
        **settings: str | int | float,
    ) -> None:
        super().__init__(bug)
        self.settings |= settings
        self._ratio, self._counter, self._least, self._swap = limit_ratio, counter, least, swap
        self._room_bytes, self._limit_bytes = room_bytes, NO_LIMIT
        self._made = Borrowed()
        self._group: Path | None = None

    def prepare(self, rank: int, folder: Path) -> None:
        """Make the group, and a place to swap to."""
        super().prepare(rank, folder)
        if self._swap:
            self._made.borrow(zram_swap(SWAP_BYTES))
        group = self._made.enter_context(memory_group(f"rootwalk-gauntlet-{os.getpid()}"))
        if group is None or not (group / "memory.limit_in_bytes").exists():
            raise UnavailableError("cannot limit memory: saw no group to make", reason="NO_CGROUP")
        self._group = group
        self._set_limit(NO_LIMIT)
        if self._swap:
            (group / "memory.swappiness").write_text("100")
        self.settings["group"] = str(group / "cgroup.procs")
        self.settings.setdefault("path", str(folder / "scratch"))

    def start(self, target: Target) -> None:
        """Choose the limit, and begin."""
        assert self._group is not None
        used = int((self._group / "memory.usage_in_bytes").read_text())
        self._limit_bytes = int(used * self._ratio) + self._room_bytes
        super().start(target)

    def resume(self) -> None:
        """Set the limit, and go on."""
        self._set_limit(self._limit_bytes)
        super().resume()

    def pause(self) -> None:
        """Touch no memory, without a limit."""
        super().pause()
        self._set_limit(NO_LIMIT)

    def _set_limit(self, limit_bytes: int) -> None:
        assert self._group is not None
        (self._group / "memory.limit_in_bytes").write_text(str(limit_bytes))

    def effect(self) -> Effect:
        """Return the kernel's own count."""
        assert self._group is not None
        if self._counter == "kills":
            lines = (self._group / "memory.oom_control").read_text().splitlines()
            kills = int(dict(line.split() for line in lines)["oom_kill"])
            return Effect(kills, "processes killed for memory", self._least)
        events = int((self._group / "memory.failcnt").read_text())
        return Effect(events, "times at the limit", self._least)

    def stop(self) -> None:
        """Lift the limit, let the processes go, remove group and swap."""
        super().stop()
        if self._group is not None:
            self._set_limit(NO_LIMIT)
            for pid in (self._group / "cgroup.procs").read_text().split():
                (ROOT / "memory" / "cgroup.procs").write_text(pid)
            (self._group / "memory.force_empty").write_text("0")
            self._group = None
        self._made.close()
