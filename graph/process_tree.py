"""The processes below one, also those whose own parents have ended, from Linux's /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterable
from pathlib import Path

__all__ = ["find_descendants", "reap_orphans", "send_signal"]


def find_descendants(
    ancestor: int, *, without: Collection[int] = (), root: Path = Path("/proc")
) -> list[int]:
    """Return the running processes below one, parents before their children.

    Args:
        ancestor: Process id; itself not in the answer.
        without: Processes to leave out, with all that is below them.
        root: Folder that holds the processes.
    """
    children: dict[int, list[int]] = {}
    for entry in root.iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                state, parent = text.rpartition(")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = [pid for pid in children.pop(waiting.pop(0), []) if pid not in without]
        found += below
        waiting += below
    return found


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; those that have ended meanwhile, or belong to somebody else, are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap_orphans(known: Collection[int]) -> None:
    """Take leave of children that have ended and are nobody's business here.

    Args:
        known: Children whose exit codes somebody waits for.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in known:
            return  # one that is known hides the others until its owner has asked for its exit code
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ended.si_pid, os.WNOHANG)
