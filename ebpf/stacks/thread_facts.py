"""What the kernel says of a thread that does not run: its system call, its registers, and where in the kernel it is.

Nothing here takes the process's memory lock or stops the thread. `syscall` and `stack` need the right to trace the
process, `stack` besides CAP_SYS_ADMIN; `wchan` gives one function where the right to trace is there, else 0.

Source: proc(5); fs/proc/base.c and lib/syscall.c of Linux 6.18.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from rootwalk.ebpf.system_calls import call_names
from rootwalk.instrumentation.profiles import Frame, FrameKind

__all__ = ["Registers", "ThreadFacts", "list_threads", "own_numbers", "read_facts", "read_start"]

# Of one file here; a stack has 64 lines at most.
MAX_BYTES = 16 * 1024
MAX_KERNEL_FRAMES = 32
MAX_NAME = 64
# More threads than a rank has: data loaders and OpenMP make hundreds.
MAX_THREADS = 4096
FUNCTION = re.compile(r"\[<[^>]*>\] ([\w.$]+)")
# What interrupted a thread that ran in user space is not what it does: x86-64, then arm64.
INTERRUPT = re.compile(r"asm_(sysvec_.*|common_interrupt|exc_nmi)|el0t?_(64_)?(irq|interrupt).*")
NAMESPACES = re.compile(r"^NSpid:.*?(\d+)$", re.MULTILINE)
START_FIELD = 22  # of /proc/<pid>/stat, counted from 1
CALL_NAMES = call_names()


class Registers(NamedTuple):
    """Where a thread left user space: instruction and stack pointer."""

    pc: int
    sp: int


class ThreadFacts(NamedTuple):
    """A thread as the kernel shows it.

    Attributes:
        name: As the thread calls itself.
        system_call: The call that it is in; None for none, or one that does not block.
        registers: None while it runs, and where they may not be read.
        kernel: The functions of the kernel that it is in, innermost first.
    """

    name: str
    system_call: str | None
    registers: Registers | None
    kernel: tuple[Frame, ...]


def list_threads(pid: int, root: Path = Path("/proc")) -> list[int]:
    """Return the numbers of a process's threads, ascending; empty where it is gone."""
    try:
        names = [entry.name for entry in (root / str(pid) / "task").iterdir()]
    except OSError:
        return []
    return sorted(int(name) for name in names[:MAX_THREADS] if name.isdigit())


def own_numbers(pid: int, root: Path = Path("/proc")) -> dict[int, int]:
    """Return the numbers of a process's threads, by those that the process itself knows.

    They differ where the process has a namespace of its own for them, as in a container.
    """
    tids = list_threads(pid, root)
    if _own_number(root / str(pid), pid) == pid:
        return {tid: tid for tid in tids}
    return {_own_number(root / str(pid) / "task" / str(tid), tid): tid for tid in tids}


def _own_number(folder: Path, number: int) -> int:
    found = NAMESPACES.search(_read(folder / "status"))
    return int(found.group(1)) if found is not None else number


def read_start(pid: int, root: Path = Path("/proc")) -> str:
    """Return when a process started, in the kernel's own units; empty where it is gone."""
    words = _read(root / str(pid) / "stat").rpartition(")")[2].split()
    return words[START_FIELD - 3] if len(words) > START_FIELD - 3 else ""


def read_facts(pid: int, tid: int, root: Path = Path("/proc")) -> ThreadFacts:
    """Return what the kernel says of a thread; what may not be read is left out."""
    folder = root / str(pid) / "task" / str(tid)
    name = _printable(_read(folder / "comm").rstrip("\n"))
    call, registers = _parse_call(_read(folder / "syscall"))
    return ThreadFacts(name, call, registers, _read_kernel(folder))


def _parse_call(text: str) -> tuple[str | None, Registers | None]:
    """Return the system call and the registers of one line: number, six arguments, stack and instruction pointer."""
    words = text.split()
    if len(words) not in (3, 9):
        return None, None
    try:
        number, sp, pc = int(words[0]), int(words[-2], 16), int(words[-1], 16)
    except ValueError:
        return None, None
    return CALL_NAMES.get(number), Registers(pc, sp) if pc and sp else None


def _read_kernel(folder: Path) -> tuple[Frame, ...]:
    names = FUNCTION.findall(_read(folder / "stack"))[:MAX_KERNEL_FRAMES]
    if not names:
        waits_in = _read(folder / "wchan").strip()
        names = [waits_in] if waits_in not in ("", "0") else []
    if names and INTERRUPT.fullmatch(names[-1]):
        return ()
    return tuple(Frame(FrameKind.KERNEL, _printable(name)) for name in names)


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text[:MAX_NAME])
