"""What runs on this machine, by family, words and environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """A process; `line` is its command line, `environment` what it started with, as far as one may read it."""

    pid: int
    parent: int
    line: str
    environment: str


def list_processes() -> list[RunningProcess]:
    """Return all processes but this one and those that only wait to be reaped."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]  # fmt: skip
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if state not in "ZX":
            found.append(RunningProcess(int(entry.name), int(parent), line, environment))
    return found


def processes_below(ancestor: int) -> list[RunningProcess]:
    """Return a process's descendants, parents first."""
    by_parent: dict[int, list[RunningProcess]] = {}
    for process in list_processes():
        by_parent.setdefault(process.parent, []).append(process)
    found: list[RunningProcess] = []
    waiting = [ancestor]
    while waiting:
        below = by_parent.pop(waiting.pop(0), [])
        found += below
        waiting += [process.pid for process in below]
    return found


def processes_of_job(job: str) -> list[RunningProcess]:
    """Return the processes that carry a job's id in their command line or their environment."""
    return [
        process
        for process in list_processes()
        if job in process.line or f"ROOTWALK_JOB={job}\0" in process.environment + "\0"
    ]
