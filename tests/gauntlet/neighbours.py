"""Who else uses the machine while a case runs: what the kernel's own accounts of all other processes say."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from rootwalk.instrumentation.errors import RootwalkError

TICKS = os.sysconf("SC_CLK_TCK")
# sched(7); such a process gets what nobody else wants.
SCHED_IDLE = 5
# After the name in /proc/<pid>/stat: parent, CPU time in user and kernel mode, policy (proc_pid_stat(5)).
PARENT, USER, KERNEL, POLICY = 1, 11, 12, 38
# kthreadd, whose children are the kernel's own threads; in a container of processes 2 is anybody, of a parent there.
THREAD_MAKER, NO_PARENT = 2, 0
PERIOD_S = 2.0
# More of them are a fault of their own.
MAX_CORES = 0.25
# So long they are watched before a run begins, and at least so long in it before it is given up.
WATCH_S = 4.0
PATIENCE_S = 12.0


class MachineBusyError(RootwalkError):
    """Strangers kept the machine busy: nothing that was found would say anything about the fault."""


class Neighbours:
    """Adds up the CPU time of processes that are neither the job, nor the disturbance, nor of the idle class.

    Nor are the kernel's own threads: they work for the job and for what is done to it, packets and pages above all.
    """

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._due_s = 0.0
        self._last: dict[int, int] = {}
        self._ticks = 0
        self.look(is_first=True)

    def look(self, *, is_first: bool = False) -> None:
        """Look at all processes, if it is time to."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + PERIOD_S
        fields = {pid: words for pid in list_processes() if (words := read_stat(pid)) is not None}
        parents = {pid: int(words[PARENT]) for pid, words in fields.items()}
        for pid, words in fields.items():
            used = int(words[USER]) + int(words[KERNEL])
            # One that has come since then has used all of it since then.
            grown = used - self._last.get(pid, used if is_first else 0)
            if int(words[POLICY]) != SCHED_IDLE and is_stranger(pid, parents):
                self._ticks += grown
            self._last[pid] = used

    @property
    def cores(self) -> float:
        """How many cores they have kept busy on average."""
        elapsed_s = time.monotonic() - self._began_s
        return self._ticks / TICKS / elapsed_s if elapsed_s > 0 else 0.0

    def check(self, max_cores: float = MAX_CORES) -> None:
        """Raise when the run is not worth going on with.

        Raises:
            MachineBusyError: After `PATIENCE_S` with more than `max_cores`.
        """
        if time.monotonic() - self._began_s > PATIENCE_S and self.cores > max_cores:
            raise MachineBusyError(f"other processes kept {self.cores:.2f} cores busy")


def await_quiet(limit_s: float) -> None:
    """Wait until strangers leave the machine alone.

    Raises:
        MachineBusyError: If they do not within so many seconds.
    """
    deadline_s = time.monotonic() + limit_s
    while True:
        watched = Neighbours()
        time.sleep(WATCH_S)
        watched.look()
        if watched.cores <= MAX_CORES:
            return
        if time.monotonic() > deadline_s:
            raise MachineBusyError(f"other processes keep {watched.cores:.2f} cores busy")


def list_processes() -> list[int]:
    """Return all processes."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def read_stat(pid: int) -> list[str] | None:
    """Return the fields after the name; None when the process is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return None


def is_ours(pid: int, parents: dict[int, int]) -> bool:
    """Whether a process descends from this one."""
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parents.get(pid, 0)
    return False


def is_kernel_thread(pid: int, parents: dict[int, int]) -> bool:
    """Whether a process is a thread of the kernel."""
    is_made = THREAD_MAKER in (pid, parents.get(pid))
    return is_made and parents.get(THREAD_MAKER) == NO_PARENT


def is_stranger(pid: int, parents: dict[int, int]) -> bool:
    """Whether a process neither descends from this one nor is a thread of the kernel."""
    return not is_ours(pid, parents) and not is_kernel_thread(pid, parents)
