"""Processes beside the job: hogs on a core or on the whole machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from gauntlet.case import Effect
from rootwalk.graph.commands.demo_faults import HOG_NAME, HOG_SOURCE, Target
from rootwalk.instrumentation.errors import UnavailableError

TICKS = os.sysconf("SC_CLK_TCK")
# The line of the demo's hog that keeps it on its core.
BINDS = "os.sched_setaffinity(0, {core})\n"
# Its loop, and one of 1 ms at a time with a rest between.
LOOPS, SHORT_LOOPS = "1_000_000", "50_000"
IMPORTS, RESTS = "import ctypes, os, signal, sys\n", "    time.sleep({rest_s})\n"
# A hog at the lowest priority hardly runs beside a rank: it is one that costs nothing.
ONE_SECOND = 1.0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, s; 0 when it is gone."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


class Hogs:
    """Processes that burn CPU.

    Args:
        count: How many.
        where: `rank` (the core of the disturbed rank) or `anywhere`.
        before: Words before each command, as `nice -n -10`.
        least_s: CPU time that they have to get, s.
        rest_s: How long they sleep after every 1 ms of it, s.
    """

    def __init__(
        self,
        count: int = 1,
        where: str = "rank",
        before: tuple[str, ...] = (),
        least_s: float = ONE_SECOND,
        rest_s: float = 0.0,
    ) -> None:
        self._count, self._where, self._before, self._least_s = count, where, before, least_s
        self._source = HOG_SOURCE
        if rest_s > 0.0:
            rests = HOG_SOURCE.replace(LOOPS, SHORT_LOOPS) + RESTS.format(rest_s=rest_s)
            self._source = rests.replace(IMPORTS, "import time\n" + IMPORTS)
        self._processes: list[subprocess.Popen[bytes]] = []

    def prepare(self, rank: int, folder: Path) -> None:
        """Try what is needed before a command."""
        if self._before:
            tried = subprocess.run([*self._before, "true"], capture_output=True, check=False)
            if tried.returncode != 0:
                raise UnavailableError(
                    f"cannot start a hog: {tried.stderr.decode().strip()}", reason="NO_PRIORITY"
                )

    def options(self) -> list[str]:
        """Nothing in the training code."""
        return []

    def start(self, target: Target) -> None:
        """Start them, as children of this process."""
        cores = sorted(os.sched_getaffinity(0))
        for number in range(self._count):
            core, source = target.core, self._source
            if self._where == "anywhere":
                core = cores[number % len(cores)]
                source = source.replace(BINDS, "")
            command = [*self._before, sys.executable, "-c", source, HOG_NAME, str(core)]
            self._processes.append(
                subprocess.Popen([*command, str(os.getpid())], stdout=subprocess.DEVNULL)
            )

    def pids(self) -> list[int]:
        """Return the processes."""
        return [process.pid for process in self._processes]

    def pause(self) -> None:
        """Stop them, without an end."""
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        for process in self._processes:
            process.send_signal(signal.SIGCONT)

    def effect(self) -> Effect:
        """Return their CPU time."""
        burnt_s = sum(cpu_seconds(process.pid) for process in self._processes)
        return Effect(burnt_s, "s of CPU time of the hogs", self._least_s)

    def stop(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()
