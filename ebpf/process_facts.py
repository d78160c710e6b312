"""The process of a rank that stands still, read from /proc: its state, its wait, its use of CPU and I/O.

    stat, task/<tid>/stat       state, CPU time
    task/<tid>/status           how often the training thread went to sleep
    task/<tid>/syscall, fd      the system call that it waits in
    io                          bytes that were read and written
    cgroup                      whether its control group is frozen

Works without BPF; what cannot be read, for a right that is missing, is None. Read only for ranks that stand still.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rootwalk.ebpf.cgroups import CgroupReader
from rootwalk.ebpf.events import Wait
from rootwalk.ebpf.interpreter import Interpreters
from rootwalk.ebpf.system_calls import CallKind, call_kinds, call_names
from rootwalk.ebpf.waits import wait_kind
from rootwalk.instrumentation.semconv import TrainingProcessState as State
from rootwalk.instrumentation.semconv import TrainingWaitKind

__all__ = ["ProcessFacts", "ProcessReader", "Usage"]

# Letters of /proc/<pid>/stat, proc(5). `I` is an idle kernel thread.
STATES: Final = {
    "R": State.RUNNING,
    "S": State.SLEEPING,
    "I": State.SLEEPING,
    "D": State.DISK,
    "T": State.STOPPED,
    "t": State.TRACED,
    "Z": State.ZOMBIE,
    "X": State.ZOMBIE,
}
HALTED: Final = frozenset({State.STOPPED, State.TRACED, State.FROZEN})
# Fields of /proc/<pid>/stat after the name: user and system time of the process, and of its children that were waited
# for.
OWN_TIMES: Final = slice(11, 13)
ALL_TIMES: Final = slice(11, 15)
NS_PER_TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
# The interpreter's state is found in some 10 ms; this is what an agent's round can be late by.
SEARCH_S: Final = 0.5
FROZEN_WORDS: Final = frozenset({"FROZEN", "FREEZING"})


@dataclass(frozen=True, slots=True)
class Usage:
    """What a rank has used since its start; None where it cannot be read.

    Attributes:
        cpu_ns: CPU time of its process and children, ns.
        main_cpu_ns: CPU time of its training thread, ns.
        wakeups: How often that thread has gone to sleep of its own accord.
        io_bytes: Bytes that its process and children have read and written.
    """

    cpu_ns: int | None
    main_cpu_ns: int | None
    wakeups: int | None
    io_bytes: int | None


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What a rank's training thread does.

    Attributes:
        state: Its state; None when it is gone.
        wait: Kind of its wait; None where it does not, or where that is not known.
        system_call: Name of the call that it waits in.
    """

    state: State | None
    wait: TrainingWaitKind | None
    system_call: str | None


class ProcessReader:
    """Reads processes.

    Args:
        root: Where /proc and /sys are.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc"
        self._interpreters = Interpreters(self._proc)
        self._cgroups = CgroupReader(root)
        self._names = call_names()
        self._kinds = call_kinds()
        self._is_readable: dict[int, bool] = {}

    def wakeups(self, pid: int, tid: int) -> int | None:
        """Return how often a thread has gone to sleep of its own accord; None when it is gone."""
        for line in self._text(f"{pid}/task/{tid}/status").splitlines():
            name, _, value = line.partition(":")
            if name == "voluntary_ctxt_switches":
                return int(value)
        return None

    def usage(self, pid: int, tid: int, children: Collection[int]) -> Usage:
        """Return what a rank has used since its start.

        Args:
            pid: Its process.
            tid: Its training thread.
            children: Its children that run; what those that were waited for have used is the process's.
        """
        cpu = [self._cpu_ns(str(one), ALL_TIMES) for one in (pid, *children)]
        io = [self._io_bytes(one) for one in (pid, *children)]
        return Usage(
            None if cpu[0] is None else sum(one or 0 for one in cpu),
            self._cpu_ns(f"{pid}/task/{tid}", OWN_TIMES),
            self.wakeups(pid, tid),
            None if io[0] is None else sum(one or 0 for one in io),
        )

    def facts(self, pid: int, tid: int) -> ProcessFacts:
        """Return what a rank's training thread does now."""
        letter = self._stat(f"{pid}/task/{tid}")[:1]
        if not letter:
            return ProcessFacts(None, None, None)
        state = STATES.get(letter[0])
        if state is not State.ZOMBIE and self._is_frozen(pid):
            state = State.FROZEN
        if state in HALTED:
            return ProcessFacts(state, TrainingWaitKind.STOP, None)
        if state in (State.RUNNING, State.ZOMBIE):
            return ProcessFacts(state, None, None)
        wait, name = self._wait(pid, tid)
        return ProcessFacts(state, wait, name)

    def forget(self, pid: int) -> None:
        """Forget a process that has ended."""
        self._is_readable.pop(pid, None)
        self._interpreters.forget(pid)

    def _wait(self, pid: int, tid: int) -> tuple[TrainingWaitKind | None, str | None]:
        """Return what a sleeping thread waits for, and its system call.

        Source:
            /proc/<pid>/syscall, proc(5): number, six arguments in hexadecimal, stack and program counter; -1 for a
            thread that sleeps in none; empty or refused without the right to trace the process.
        """
        words = self._text(f"{pid}/task/{tid}/syscall").split()
        if not words or not words[0].lstrip("-").isdigit():
            return None, None
        call = int(words[0])
        name = self._names.get(call)
        first = int(words[1], 16) if call >= 0 and len(words) > 1 else 0
        kind = self._kinds[call] if 0 <= call < len(self._kinds) else 0
        is_file = kind == CallKind.FILE
        mode, family = self._file(pid, first) if is_file else (0, 0)
        wait = Wait(
            object=first if kind == CallKind.FUTEX else 0,
            call=call,
            device=0,
            magic=0,
            address=0,
            mode=mode,
            family=family,
            port=0,
            poll_events=0,
            waker_tid=0,
            waker_tgid=0,
            waker_name="",
        )
        is_lock = bool(wait.object) and self._holds_lock(pid, wait.object)
        return wait_kind(wait, name, is_interpreter_lock=is_lock), name

    def _file(self, pid: int, descriptor: int) -> tuple[int, int]:
        """Return the type of an open file, as in a mode, and AF_UNIX for a socket of the machine itself, else 0.

        By its name only: to ask the file itself is to ask its file system, which may be what the rank waits for.
        """
        try:
            target = str((self._proc / str(pid) / "fd" / str(descriptor)).readlink())
        except OSError:
            return 0, 0
        kind, _, number = target.partition(":")
        if kind == "socket":
            inode = number.strip("[]")
            lines = self._text(f"{pid}/net/unix").splitlines()
            is_local = any(inode in line.split()[6:7] for line in lines)
            return stat.S_IFSOCK, int(socket.AF_UNIX) if is_local else 0
        if kind == "pipe":
            return stat.S_IFIFO, 0
        if not target.startswith("/"):
            return 0, 0  # of the kernel's own, such as an eventfd
        return stat.S_IFCHR if target.startswith("/dev/") else stat.S_IFREG, 0

    def _holds_lock(self, pid: int, address: int) -> bool:
        """Return whether an address lies in the interpreter's state, where that can be found without a wait.

        A list of mappings is read for that, once a process; behind a page that never comes that does not end.
        """
        if pid not in self._is_readable:
            search = threading.Thread(
                target=self._interpreters.holds_lock, args=(pid, address), daemon=True
            )
            search.start()
            search.join(SEARCH_S)
            self._is_readable[pid] = not search.is_alive()
        return self._is_readable[pid] and self._interpreters.holds_lock(pid, address)

    def _is_frozen(self, pid: int) -> bool:
        text = self._text(f"{pid}/cgroup")
        for level in self._cgroups.levels_in(text, "freezer") or []:
            folder = Path(level.folder)
            if level.is_unified:  # counts its ancestors as well
                return "frozen 1" in _read(folder / "cgroup.events").splitlines()
            return _read(folder / "freezer.state").strip() in FROZEN_WORDS
        return False

    def _cpu_ns(self, place: str, times: slice) -> int | None:
        fields = self._stat(place)
        return sum(int(one) for one in fields[times]) * NS_PER_TICK if fields else None

    def _io_bytes(self, pid: int) -> int | None:
        found = None
        for line in self._text(f"{pid}/io").splitlines():
            name, _, value = line.partition(":")
            if name in ("rchar", "wchar"):
                found = (found or 0) + int(value)
        return found

    def _stat(self, place: str) -> list[str]:
        return self._text(f"{place}/stat").rpartition(")")[2].split()

    def _text(self, place: str) -> str:
        return _read(self._proc / place)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
