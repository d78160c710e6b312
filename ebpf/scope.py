"""Which processes of this kernel an agent answers for.

Machines that share a kernel (containers, or hosts made of namespaces) see each other's processes in /proc. Two agents
must not tell the same rank twice, nor one host's rank as the other's:

    agent in a UTS namespace of its own      that host: its own namespace only
    agent of a `rootwalk run`                its own namespace, and what its run started, such as a container
    agent in the kernel's first namespace    all of them: containers are part of the machine

Where several agents may watch a rank, its spans come from the one that has locked its ring, and its metrics from the
one that has locked its folder in /proc. Both locks end with their owner.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from rootwalk.ebpf.discovery import read_parent
from rootwalk.instrumentation.identity import Identity

__all__ = ["Scope"]

# Of /proc/<pid>/ns/uts; the kernel gives the first one this number at boot (include/linux/proc_ns.h).
INITIAL_UTS_NAMESPACE = 0xEFFFFFFE
# More ancestors than any process has; a tree that changes while it is read could be a circle.
MAX_ANCESTORS = 64


class Scope:
    """What one agent may watch, and what it has claimed.

    Args:
        run_pid: The `rootwalk run` that this agent belongs to; None when it stands alone.
        root: Folder that holds the processes.
    """

    def __init__(self, run_pid: int | None = None, root: Path = Path("/proc")) -> None:
        self._run_pid = run_pid
        self._root = root
        self._own = self._namespace("self")
        self._host_name = socket.gethostname()
        self._claims: dict[int, int] = {}

    @property
    def is_whole_machine(self) -> bool:
        """Return whether every process of this kernel is this agent's."""
        return self._run_pid is None and self._own in (None, INITIAL_UTS_NAMESPACE)

    def covers(self, pid: int) -> bool:
        """Return whether a process that runs is one that this agent may watch."""
        if self.is_whole_machine:
            return True
        namespace = self._namespace(pid)
        if namespace is not None and namespace == self._own:
            return True
        return self._run_pid is not None and self._descends_from(pid, self._run_pid)

    def covers_ring(self, who: Identity) -> bool:
        """Return whether a rank that has ended was one of this host's, as its ring tells."""
        if self.is_whole_machine:
            return True
        return who.host_name == self._host_name

    def claim(self, pid: int) -> bool:
        """Return whether this agent, and no other, sends a process's metrics from now on."""
        if pid in self._claims:
            return True
        try:
            descriptor = os.open(self._root / str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False  # gone
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._claims[pid] = descriptor
        return True

    def release(self, pid: int) -> None:
        """Let another agent send a process's metrics; safe when it is not taken."""
        descriptor = self._claims.pop(pid, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Release everything; safe twice."""
        for pid in list(self._claims):
            self.release(pid)

    def _namespace(self, pid: int | str) -> int | None:
        try:
            return (self._root / str(pid) / "ns/uts").stat().st_ino
        except OSError:
            return None

    def _descends_from(self, pid: int, ancestor: int) -> bool:
        above: int | None = pid
        for _ in range(MAX_ANCESTORS):
            if above in (None, 0):
                return False
            if above == ancestor:
                return True
            above = read_parent(int(above or 0), self._root)
        return False
