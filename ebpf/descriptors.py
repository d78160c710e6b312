"""Which sockets watched processes hold, by their open descriptors.

A listing tells the numbers; only a number that is new is looked at, and one whose socket has ended. That misses a file
whose number was given to a socket between two looks, so everything is looked at again every half minute. A look
costs some 1 us a descriptor and 3 us a new one; the processes take turns when they have more than `MAX_READS`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Descriptors", "read_socket_inode"]

# Descriptors that are listed or looked at in one look, all processes together: 10 ms of one CPU every 2 s.
MAX_READS = 4096
# A process with more is listed in one piece all the same; this bounds what is remembered of it.
MAX_DESCRIPTORS = 16_384
FULL_LOOKS = 15
PREFIX, SUFFIX = "socket:[", "]"


def read_socket_inode(pid: int, number: int | str, proc: Path = Path("/proc")) -> int | None:
    """Return the inode of the socket behind a descriptor; None when it is none, or gone.

    Args:
        pid: Process id.
        number: The descriptor.
        proc: Folder that holds the processes.
    """
    try:
        target = os.readlink(f"{proc}/{pid}/fd/{number}")  # noqa: PTH115 - a Path costs twice the call
    except OSError:
        return None
    if not target.startswith(PREFIX) or not target.endswith(SUFFIX):
        return None
    inode = target[len(PREFIX) : -len(SUFFIX)]
    return int(inode) if inode.isascii() and inode.isdigit() else None


@dataclass(slots=True)
class _Process:
    """What is known of one process.

    Attributes:
        inodes: By descriptor; None for what is no socket.
        looks_left: Until everything is looked at again.
    """

    inodes: dict[str, int | None] = field(default_factory=dict)
    looks_left: int = FULL_LOOKS


class Descriptors:
    """The sockets of the watched processes.

    Args:
        proc: Folder that holds the processes.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._processes: dict[int, _Process] = {}
        self._turns: deque[int] = deque()
        self.unreadable = 0
        self.dropped = 0

    def watch(self, pid: int) -> None:
        """Follow a process; nothing changes when it is followed."""
        if pid not in self._processes:
            self._processes[pid] = _Process()
            self._turns.appendleft(pid)

    def forget(self, pid: int) -> None:
        """Stop following a process; safe when it is not followed."""
        if self._processes.pop(pid, None) is not None:
            self._turns.remove(pid)

    def look(self, ended: Iterable[int] = ()) -> Mapping[int, set[int]]:
        """Return the sockets of the processes whose turn it was: inodes by process id.

        Args:
            ended: Inodes of sockets that do not exist any more: what has their numbers now is looked at.
        """
        gone = frozenset(ended)
        if gone:
            for process in self._processes.values():
                stale = [number for number, inode in process.inodes.items() if inode in gone]
                for number in stale:
                    del process.inodes[number]
        found: dict[int, set[int]] = {}
        reads = 0
        for _ in range(len(self._turns)):
            if reads >= MAX_READS:
                break
            pid = self._turns.popleft()
            self._turns.append(pid)
            process = self._processes[pid]
            reads += self._look_at(pid, process)
            found[pid] = {inode for inode in process.inodes.values() if inode is not None}
        return found

    def _look_at(self, pid: int, process: _Process) -> int:
        """Bring one process up to date; return how many descriptors were listed or looked at."""
        try:
            numbers = os.listdir(f"{self._proc}/{pid}/fd")  # noqa: PTH208 - names are enough
        except PermissionError:
            self.unreadable += 1
            return 1
        except OSError:
            process.inodes.clear()  # gone; whoever watches it will forget it
            return 1
        if len(numbers) > MAX_DESCRIPTORS:
            self.dropped += len(numbers) - MAX_DESCRIPTORS
            numbers = numbers[:MAX_DESCRIPTORS]
        process.looks_left -= 1
        if process.looks_left <= 0:
            process.looks_left = FULL_LOOKS
            process.inodes = {}
        before = process.inodes
        now: dict[str, int | None] = {}
        new = 0
        for number in numbers:
            if number in before:
                now[number] = before[number]
            else:
                now[number] = read_socket_inode(pid, number, self._proc)
                new += 1
        process.inodes = now
        return len(numbers) + new
