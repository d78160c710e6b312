"""This process and the kernel: its name, whose end is its end, its children, its urgency, the memory it has had."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from pathlib import Path
from typing import Final

__all__ = [
    "LOWEST_PRIORITY",
    "adopt_orphans",
    "follow_parent",
    "give_way",
    "is_idle",
    "name_process",
    "peak_resident_bytes",
    "run_as_others",
    "run_when_idle",
    "set_idle",
    "set_niceness",
    "set_session_niceness",
]

# Source: sched(7), the autogroup feature.
AUTOGROUP: Final = Path("/proc/self/autogroup")
LOWEST_PRIORITY: Final = 19
# A tenth of a core that one other process wants, so an answer that costs 0.5 s of CPU time comes after seconds.
# Source: sched_prio_to_weight in kernel/sched/core.c, 110 against 1024.
YIELDING_NICENESS: Final = 10

# Operations of prctl, from linux/prctl.h.
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
# Found once, and not between fork and exec, where the loader's lock may be held for ever.
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def name_process(name: str) -> None:
    """Set the command name that ps and the kernel show, cut to 15 bytes; threads made later inherit it.

    Helpers are named so that they can be recognised, and blamed, when they get in a rank's way.
    """
    _LIBC.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def follow_parent(parent_pid: int | None = None) -> bool:
    """Ask for SIGTERM when the parent ends, and return whether it is still there.

    Args:
        parent_pid: The parent that was meant, for a child that is started but not yet running its own program; None
            for the present one. The wish survives exec.
    """
    expected = os.getppid() if parent_pid is None else parent_pid
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == expected


def adopt_orphans() -> bool:
    """Become the parent of all processes below this one whose parents end, and return whether the kernel agreed.

    Else a rank that a script has put into the background would belong to nobody when the script ends.
    """
    return int(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0


def run_when_idle() -> None:
    """Run only where a core has nothing else to do.

    Some kernels share cores between sessions first: there the session yields, if it is this process's own.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _yield_session(LOWEST_PRIORITY)


def run_as_others() -> None:
    """Take back `run_when_idle`, as far as a process without privileges may."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    _yield_session(0)


def set_niceness(pid: int, niceness: int) -> None:
    """Set the niceness of a process that leads a session, of all its threads and of the session, as far as allowed.

    Without privileges a niceness goes up only; that of a session goes both ways.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PGRP, pid, niceness)
    set_session_niceness(pid, niceness)


def set_session_niceness(pid: int, niceness: int) -> None:
    """Set the niceness of the session of a process, where the kernel shares cores between sessions first."""
    with contextlib.suppress(OSError):  # no such sharing here
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def is_idle(pid: int) -> bool:
    """Return whether a process runs only where a core has nothing else to do; not one that has ended."""
    with contextlib.suppress(OSError):
        return os.sched_getscheduler(pid) == os.SCHED_IDLE
    return False


def set_idle(pid: int, *, is_idle: bool) -> None:
    """Let all threads of a process run only where a core has nothing else to do, or as others; as far as allowed."""
    policy = os.SCHED_IDLE if is_idle else os.SCHED_OTHER
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))


def _yield_session(niceness: int) -> None:
    """Give this process's session a niceness where the kernel shares cores between sessions first.

    There the niceness of a process counts among its session's only. A session that another process leads is left as it
    is: what else is started from that shell would yield from then on.
    """
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # no such sharing here
            AUTOGROUP.write_text(str(niceness))


def give_way() -> None:
    """Take little of the cores that others want, and all that they leave; somebody waits for this process.

    Where the kernel shares cores between sessions first, a process with a session of its own (a service, a cron job)
    yields with it; one that was started from a shell yields to that shell's other processes alone.
    """
    niceness = max(os.getpriority(os.PRIO_PROCESS, 0), YIELDING_NICENESS)
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    _yield_session(niceness)


def peak_resident_bytes() -> int:
    """Return the most memory that this program has had resident, bytes.

    `getrusage` would count what the process had before it became this program: that of a large parent.
    """
    with contextlib.suppress(OSError):
        for line in (
            Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        ):
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
