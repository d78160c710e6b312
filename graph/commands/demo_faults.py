"""The faults that can be put into a training job: each in a real process, each with an end.

A fault says which script it needs, checks before the training whether it can be had here, begins when it is told to and
stops without leaving anything behind. What it is expected to be called in a verdict is told here too, and nowhere else:
the diagnosis never sees this module.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rootwalk.graph.commands.cpu_limit import CpuLimit, find_group_tree, remove_leftovers

__all__ = ["FAULTS", "Fault", "Target", "Truth"]

logger = logging.getLogger(__name__)

TRAINING_SCRIPT: Final = "train_ddp.py"
SCRIPT_WITH_BUG: Final = "train_with_bug.py"
# Half of what a rank that computes all the time uses: its part of a step takes twice as long.
LIMIT_CPUS: Final = 0.5
# A process that only burns CPU, named so that one can tell that the name was found and not guessed.
HOG_NAME: Final = "noisy-neighbour"
HOG_SOURCE: Final = """
import ctypes, os, signal, sys
name, core, parent = sys.argv[1].encode(), int(sys.argv[2]), int(sys.argv[3])
libc = ctypes.CDLL(None)
libc.prctl(15, name, 0, 0, 0)             # PR_SET_NAME
libc.prctl(1, signal.SIGKILL, 0, 0, 0)    # PR_SET_PDEATHSIG: never outlives the demo
os.sched_setaffinity(0, {core})
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@dataclass(frozen=True, slots=True)
class Target:
    """The rank that a fault is put on.

    Attributes:
        rank: Its number.
        pid: Its main process.
        core: The CPU that it is bound to.
    """

    rank: int
    pid: int
    core: int


@dataclass(frozen=True, slots=True)
class Truth:
    """What a verdict has to say.

    Attributes:
        reason: Code of the contract.
        layer: Layer of the contract.
        pid: The process that is to blame, None where the job itself or a limit is.
        name: That process's name.
    """

    reason: str
    layer: str
    pid: int | None = None
    name: str | None = None


class Fault(Protocol):
    """One fault; `prepare` before the training, `start` in it, `stop` after it and in any case."""

    def prepare(self, rank: int, folder: Path) -> None:
        """Make sure that the fault can be had here.

        Args:
            rank: The rank that it is meant for.
            folder: For files of its own; exists until after `stop`.

        Raises:
            UnavailableError: If this machine or this user's rights do not allow it.
        """

    def script(self) -> list[str]:
        """Return the training script's name and the options that it needs; call it after `prepare`."""

    def start(self, target: Target) -> None:
        """Begin.

        Raises:
            UnavailableError: If it cannot after all.
        """

    def stop(self) -> None:
        """End and leave nothing behind; safe without start and twice."""

    def describe(self) -> str:
        """Return what was done to which rank, in words; call it after `start`."""

    def truth(self) -> Truth:
        """Return what a verdict has to say; call it after `start`."""


class CpuContention:
    """A process outside of the job that burns CPU on the rank's core."""

    TEXT: Final = "another process, not a child of the job, on one rank's core"

    def __init__(self) -> None:
        self._target: Target | None = None
        self._hog: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    def prepare(self, rank: int, folder: Path) -> None:
        """Nothing is needed."""

    def script(self) -> list[str]:
        """Return the plain training script."""
        return [TRAINING_SCRIPT]

    def start(self, target: Target) -> None:
        """Start the process; it belongs to this one, not to the job."""
        self._target = target
        command = [sys.executable, "-c", HOG_SOURCE, HOG_NAME, str(target.core), str(os.getpid())]
        self._hog = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603  (our own source)
        self._pid = self._hog.pid

    def stop(self) -> None:
        """End the process."""
        if self._hog is not None:
            self._hog.kill()
            self._hog.wait()
            self._hog = None

    def describe(self) -> str:
        """Return the process and the core."""
        where = self._target and f"core {self._target.core}, which rank {self._target.rank} runs on"
        return f"'{HOG_NAME}' (pid {self._pid}) runs on {where}"

    def truth(self) -> Truth:
        """Return the process that is to blame."""
        return Truth("CPU_CONTENTION", "operating_system", self._pid, HOG_NAME)


class CpuQuota:
    """A control group's CPU limit on the rank and its loader processes."""

    TEXT: Final = "a control group's limit of half a CPU on one rank and its loader (needs root)"

    def __init__(self) -> None:
        self._limit: CpuLimit | None = None
        self._text = "no limit"

    def prepare(self, rank: int, folder: Path) -> None:
        """Make the group, still empty; remove those that killed demos left.

        Raises:
            UnavailableError: Without a cpu controller, or the right to make groups.
        """
        tree = find_group_tree()
        for path in remove_leftovers(tree):
            logger.info("removed %s, which a killed demo left", path)
        self._limit = CpuLimit.create(tree, LIMIT_CPUS)

    def script(self) -> list[str]:
        """Return the plain training script."""
        return [TRAINING_SCRIPT]

    def start(self, target: Target) -> None:
        """Move the rank and all its children into the group.

        Raises:
            UnavailableError: If one of them cannot be moved.
        """
        if self._limit is not None:
            count = self._limit.add_tree(target.pid)
            self._text = (
                f"rank {target.rank} ({count} processes) may use {self._limit.cpus:g} CPU"
                f" from now on, in {self._limit.group}"
            )

    def stop(self) -> None:
        """Remove the group."""
        if self._limit is not None:
            self._limit.remove()
            self._limit = None

    def describe(self) -> str:
        """Return the limit and the group."""
        return self._text

    def truth(self) -> Truth:
        """Return that the limit is to blame."""
        return Truth("CPU_QUOTA", "operating_system")


class TrainingBug:
    """A bug in the training code, which one rank has while a file exists.

    Args:
        bug: Its name in the script.
        text: What it does, for `describe`.
        reason: Code of the contract.
    """

    def __init__(self, bug: str, text: str, reason: str) -> None:
        self._bug = bug
        self._text = text
        self._reason = reason
        self._file: Path | None = None
        self._rank: int | None = None

    def prepare(self, rank: int, folder: Path) -> None:
        """Choose the file."""
        self._rank = rank
        self._file = folder / f"{self._bug}.on"

    def script(self) -> list[str]:
        """Return the script that has the bug, and where it looks whether it is on."""
        options = ["--bug", self._bug, "--bug-rank", str(self._rank), "--bug-file", str(self._file)]
        return [SCRIPT_WITH_BUG, *options]

    def start(self, target: Target) -> None:
        """Make the file."""
        if self._file is not None:
            self._file.touch()

    def stop(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def describe(self) -> str:
        """Return the bug and the rank."""
        return f"rank {self._rank} {self._text}"

    def truth(self) -> Truth:
        """Return that the job's own code is to blame."""
        return Truth(self._reason, "application")


def _loader_bug() -> TrainingBug:
    text = "unpacks a whole shard in Python for every sample (decode_sample)"
    return TrainingBug("data_loader", text, "DATALOADER_CPU")


def _collector_bug() -> TrainingBug:
    return TrainingBug("python_gc", "collects garbage at random steps", "PY_GC")


def _lock_bug() -> TrainingBug:
    text = "counts pairs of bytes in a thread beside the training (count_pairs)"
    return TrainingBug("python_gil", text, "PY_GIL")


def _log_bug() -> TrainingBug:
    text = "writes weights into a pipe whose reader is slow (log_weights)"
    return TrainingBug("blocking_log", text, "BLOCKING_LOG")


# Name: what `--list` says, and how to make one. `none` is not a fault but the question whether health is recognised.
FAULTS: Final[dict[str, tuple[str, Callable[[], Fault] | None]]] = {
    "cpu_contention": (CpuContention.TEXT, CpuContention),
    "cpu_quota": (CpuQuota.TEXT, CpuQuota),
    "data_loader": ("costly decoding of samples in Python, in one rank's loader", _loader_bug),
    "python_gc": (
        "garbage collections of many objects at random steps of one rank",
        _collector_bug,
    ),
    "python_gil": ("statistics in Python, in a second thread of one rank", _lock_bug),
    "blocking_log": ("weights logged into a pipe whose reader is slow, by one rank", _log_bug),
    "none": ("no fault: the verdict must be that the job is healthy", None),
}
