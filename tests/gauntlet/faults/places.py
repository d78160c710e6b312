"""Ranks on the wrong cores, cores that are busy with packets, and a watcher that takes a rank's core."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from gauntlet.case import Effect
from gauntlet.faults.borrowed import Borrowed
from rootwalk.graph.commands.demo_faults import Target
from rootwalk.instrumentation.errors import UnavailableError
from support.slow_packets import COUNT, SlowPackets, slow_packets

STARTUP = Path(__file__).with_name("busy_agent")
MIN_BUSY_S = 1.0


class SharedCore:
    """All threads of a rank are bound to another core; its loader stays where it is.

    Args:
        where: `shared` (another rank's core) or `own` (the one that it has already).
    """

    def __init__(self, where: str = "shared") -> None:
        self._where = where
        self._bound = 0
        self._target: Target | None = None
        self._before: dict[int, set[int]] = {}

    def prepare(self, rank: int, folder: Path) -> None:
        """Nothing is needed."""

    def options(self) -> list[str]:
        """Nothing in the training code."""
        return []

    def start(self, target: Target) -> None:
        """Choose the core, and begin."""
        self._target = target
        self.resume()

    def resume(self) -> None:
        """Bind every thread, and those that they start later."""
        assert self._target is not None
        cores = sorted(os.sched_getaffinity(0))
        others = [core for core in cores[:2] if core != self._target.core]
        core = others[0] if self._where == "shared" else self._target.core
        for thread in (int(one.name) for one in Path(f"/proc/{self._target.pid}/task").iterdir()):
            with contextlib.suppress(ProcessLookupError):
                self._before[thread] = os.sched_getaffinity(thread)
                os.sched_setaffinity(thread, {core})
                self._bound += os.sched_getaffinity(thread) == {core}

    def pause(self) -> None:
        """Bind every thread to where it was before."""
        for thread, cores in self._before.items():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)
        self._before.clear()

    def effect(self) -> Effect:
        """Return how many threads the kernel said, then, that it runs there only."""
        return Effect(self._bound, "threads bound there", 1)

    def stop(self) -> None:
        """Nothing stays behind the process."""


class Packets:
    """Packets that keep a core in soft interrupts, in a network of their own; sent from another core."""

    def __init__(self) -> None:
        self._made = Borrowed()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._core = -1
        self._before = 0.0

    def prepare(self, rank: int, folder: Path) -> None:
        """See whether it can be had here."""
        cores = sorted(os.sched_getaffinity(0))
        with Borrowed() as trial:
            trial.borrow(slow_packets(cores[0], cores[1]))

    def options(self) -> list[str]:
        """Nothing in the training code."""
        return []

    def start(self, target: Target) -> None:
        """Send."""
        cores = sorted(os.sched_getaffinity(0))
        sender = next(core for core in cores[:2] if core != target.core)
        packets = self._made.borrow(slow_packets(sender, target.core))
        self._core, self._before = target.core, soft_interrupt_s(target.core)
        self._thread = threading.Thread(target=self._send, args=(packets,))
        self._thread.start()

    def _send(self, packets: SlowPackets) -> None:
        while not self._over.is_set():
            packets.begin()
            packets.wait_for("sent")

    def effect(self) -> Effect:
        """Return the kernel's time in soft interrupts of that core."""
        spent_s = soft_interrupt_s(self._core) - self._before
        return Effect(spent_s, f"s in soft interrupts, {COUNT} packets a time", MIN_BUSY_S)

    def stop(self) -> None:
        """Send no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._made.close()


def soft_interrupt_s(core: int) -> float:
    """Return the time in soft interrupts of a core (proc_stat(5)), s."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{core}":
            return int(fields[6]) / os.sysconf("SC_CLK_TCK")
    raise UnavailableError(f"cannot read the time of core {core}", reason="NO_CORE")


class BusyAgent:
    """A thread in the agent's own process that computes on a rank's core while a file exists.

    Args:
        least_s: CPU time of the thread that there has to be, s.
        where: `rank` (before that rank, for half of the time) or `idle`: only what nobody else wants.
    """

    def __init__(self, least_s: float = MIN_BUSY_S, where: str = "rank") -> None:
        self._least_s, self._where = least_s, where
        self._file: Path | None = None
        self._core = -1

    def prepare(self, rank: int, folder: Path) -> None:
        """Choose the files."""
        self._file = folder / "agent.busy"

    def options(self) -> list[str]:
        """Nothing in the training code."""
        return []

    def environment(self) -> dict[str, str]:
        """Return what lets the agent start its thread."""
        paths = [str(STARTUP), *filter(None, [os.environ.get("PYTHONPATH", "")])]
        return {"PYTHONPATH": os.pathsep.join(paths), "BUSY_AGENT_FILE": str(self._file)}

    def start(self, target: Target) -> None:
        """Choose the core, and begin."""
        self._core = target.core
        self.resume()

    def resume(self) -> None:
        """Tell it the core."""
        assert self._file is not None
        part = self._file.with_suffix(".part")
        part.write_text(f"{self._core} {self._where}")
        part.rename(self._file)

    def pause(self) -> None:
        """Let the thread rest."""
        assert self._file is not None
        self._file.unlink(missing_ok=True)

    def effect(self) -> Effect:
        """Return the thread's CPU time, by its own clock."""
        assert self._file is not None
        used_s = 0.0
        with contextlib.suppress(FileNotFoundError):  # never began
            used_s = float(self._file.with_suffix(".used").read_text())
        return Effect(used_s, "s of CPU time of that thread", self._least_s)

    def stop(self) -> None:
        """Let the thread end."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
