"""Finds the ranks of training jobs on this host by the environment of their processes.

A rank is a process whose launcher told it its rank and the world size. Its children inherit that environment: they are
its helpers (loader workers), not ranks. A shell that a launcher put in between is neither. Of an environment only the
names in `ALLOWED_VARIABLES` are looked at; nothing else is kept, let alone sent.

Cheap: one listing of /proc a scan; an environment is read when a process is new, and again while it is young, because
a process carries its parent's environment between fork and exec. Needs no cooperation, but the right to read
/proc/<pid>/environ (same user, or CAP_SYS_PTRACE).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from rootwalk.ebpf.events import EventFlag
from rootwalk.instrumentation import identity as identities
from rootwalk.instrumentation.identity import Identity
from rootwalk.instrumentation.semconv import TrainingThreadRole

__all__ = [
    "Discovery",
    "Population",
    "RankProcess",
    "find_descendants",
    "is_process_alive",
    "read_parent",
    "read_start_ticks",
    "read_threads",
    "thread_role",
]

RANK_NAMES = frozenset(identities.RANK_VARIABLES)
WORLD_SIZE_NAMES = frozenset(identities.WORLD_SIZE_VARIABLES)
ALLOWED_VARIABLES = frozenset(
    (
        *identities.JOB_VARIABLES,
        *identities.RANK_VARIABLES,
        *identities.WORLD_SIZE_VARIABLES,
        *identities.LOCAL_RANK_VARIABLES,
        *identities.ATTEMPT_VARIABLES,
        "MASTER_ADDR",
        "MASTER_PORT",
        "OTEL_SERVICE_NAME",
    )
)
# Processes that a launcher starts to start the rank.
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "srun", "env", "numactl", "taskset"})
# Beginnings of the names that PyTorch, gloo and NCCL give to the threads that move data, in lower case.
COLLECTIVE_THREADS = ("pt_gloo", "gloo", "pt_nccl", "nccl", "pt_tcpstore")
# Between fork and exec lie milliseconds; two scans later it is over even on a loaded host.
YOUNG_S = 5.0
START_TIME_FIELD = 19  # of /proc/<pid>/stat after the name; in clock ticks since boot
PARENT_FIELD = 1
MAJOR_FAULTS_FIELD = 9
CHILDREN_MAJOR_FAULTS_FIELD = 10


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A rank of a job on this host.

    Attributes:
        identity: Who it is; its pid is the one in this pid namespace.
        start_ticks: When the process started, clock ticks since boot: tells it from a later one with the same pid.
    """

    identity: Identity
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Population:
    """What runs now.

    Attributes:
        ranks: Ranks by process id.
        rank_by_helper: Process id of the rank by process id of its child (or grandchild).
    """

    ranks: dict[int, RankProcess]
    rank_by_helper: dict[int, int]


@dataclass(slots=True)
class _Seen:
    first_seen_s: float
    start_ticks: int
    parent: int
    identity: Identity | None


def _stat_fields(root: Path, pid: int) -> tuple[str, list[str]] | None:
    try:
        text = (root / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    return name, rest.split()


def is_process_alive(pid: int, start_ticks: int | None = None, root: Path = Path("/proc")) -> bool:
    """Return whether a process runs; one that waits to be reaped does not.

    Args:
        pid: Process id.
        start_ticks: When it started; another process with the same id does not count. None: any will do.
        root: Folder that holds the processes.
    """
    found = _stat_fields(root, pid)
    if found is None or found[1][0] in "ZX":
        return False
    return start_ticks is None or int(found[1][START_TIME_FIELD]) == start_ticks


def read_start_ticks(pid: int, root: Path = Path("/proc")) -> int | None:
    """Return when a process started, clock ticks since boot; None when it is gone."""
    found = _stat_fields(root, pid)
    return int(found[1][START_TIME_FIELD]) if found else None


def read_parent(pid: int, root: Path = Path("/proc")) -> int | None:
    """Return a process's parent; None when it is gone."""
    found = _stat_fields(root, pid)
    return int(found[1][PARENT_FIELD]) if found else None


def read_major_faults(
    pid: int, start_ticks: int | None = None, root: Path = Path("/proc")
) -> int | None:
    """Return the major page faults of a process's threads, and of its children that were waited for.

    Args:
        pid: Process id.
        start_ticks: When it started; another process with the same id has None. None: any will do.
        root: Folder that holds the processes.
    """
    found = _stat_fields(root, pid)
    if found is None:
        return None
    fields = found[1]
    if start_ticks is not None and int(fields[START_TIME_FIELD]) != start_ticks:
        return None
    return int(fields[MAJOR_FAULTS_FIELD]) + int(fields[CHILDREN_MAJOR_FAULTS_FIELD])


def read_threads(pid: int, root: Path = Path("/proc")) -> dict[int, bool]:
    """Return a process's threads, and whether each is asleep or stopped; empty when it is gone."""
    states: dict[int, bool] = {}
    try:
        tids = [int(entry.name) for entry in (root / str(pid) / "task").iterdir()]
    except OSError:
        return states
    for tid in tids:
        found = _stat_fields(root / str(pid) / "task", tid)
        if found is not None:
            states[tid] = found[1][0] != "R"
    return states


def find_descendants(pid: int, root: Path = Path("/proc")) -> list[int]:
    """Return the children of a process, their children and so on, as they are now; by process id."""
    parents: dict[int, int] = {}
    for entry in root.iterdir():
        parent = read_parent(int(entry.name), root) if entry.name.isdigit() else None
        if parent is not None:
            parents[int(entry.name)] = parent
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {pid})


@lru_cache(maxsize=4096)  # asked for every event
def thread_role(flags: int, name: str) -> TrainingThreadRole:
    """Return what a thread of a rank is for, by its process and its name."""
    if flags & EventFlag.INHERITED:
        return TrainingThreadRole.LOADER_WORKER
    if flags & EventFlag.LEADER:
        return TrainingThreadRole.MAIN
    if name.lower().startswith(COLLECTIVE_THREADS):
        return TrainingThreadRole.COLLECTIVE
    return TrainingThreadRole.OTHER


class Discovery:
    """Remembers which processes are ranks.

    Args:
        job: Follow this job only; None follows all.
        root: Folder that holds the processes.
        clock_s: Monotonic clock, s.
    """

    def __init__(
        self,
        job: str | None = None,
        root: Path = Path("/proc"),
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._root = root
        self._clock_s = clock_s
        self._seen: dict[int, _Seen] = {}

    def scan(self) -> Population:
        """Look at what runs now."""
        now = self._clock_s()
        pids = {int(entry.name) for entry in self._root.iterdir() if entry.name.isdigit()}
        for pid in self._seen.keys() - pids:
            del self._seen[pid]
        for pid in sorted(pids):
            self._look(pid, now)
        return self._population()

    def _look(self, pid: int, now: float) -> None:
        seen = self._seen.get(pid)
        if seen is not None and seen.identity is None and now - seen.first_seen_s > YOUNG_S:
            return
        fields = _stat_fields(self._root, pid)
        if fields is None or fields[1][0] in "ZX":
            self._seen.pop(pid, None)
            return
        name, rest = fields
        start_ticks, parent = int(rest[START_TIME_FIELD]), int(rest[PARENT_FIELD])
        is_same = seen is not None and seen.start_ticks == start_ticks
        if seen is not None and is_same and now - seen.first_seen_s > YOUNG_S:
            seen.parent = parent
            return
        first_seen_s = seen.first_seen_s if seen is not None and is_same else now
        identity = None if name in SHELLS else self._identity(pid)
        self._seen[pid] = _Seen(first_seen_s, start_ticks, parent, identity)

    def _identity(self, pid: int) -> Identity | None:
        try:
            raw = (self._root / str(pid) / "environ").read_bytes()
        except OSError:
            return None
        environment: dict[str, str] = {}
        for entry in raw.split(b"\0"):
            key, _, value = entry.partition(b"=")
            name = key.decode("ascii", errors="replace")
            if name in ALLOWED_VARIABLES:
                environment[name] = value.decode(errors="replace")
        if not (environment.keys() & RANK_NAMES and environment.keys() & WORLD_SIZE_NAMES):
            return None
        if not identities.is_rank(environment):
            return None
        identity = replace(identities.read_identity(environment), pid=pid)
        return identity if self._job in (None, identity.job) else None

    def _population(self) -> Population:
        ranks: dict[int, RankProcess] = {}
        rank_by_helper: dict[int, int] = {}
        for pid, seen in self._seen.items():
            if seen.identity is None:
                continue
            oldest = self._oldest_like(pid, seen.identity)
            if oldest == pid:
                ranks[pid] = RankProcess(seen.identity, seen.start_ticks)
            else:
                rank_by_helper[pid] = oldest
        return Population(ranks, rank_by_helper)

    def _oldest_like(self, pid: int, identity: Identity) -> int:
        """Return the farthest ancestor that claims the same rank of the same job."""
        oldest, parent = pid, self._seen[pid].parent
        for _ in range(64):  # a tree that changes while it is read could be a circle
            above = self._seen.get(parent)
            if above is None:
                break
            if above.identity is not None:
                if replace(above.identity, pid=pid) != replace(identity, pid=pid):
                    break
                oldest = parent
            parent = above.parent
        return oldest
