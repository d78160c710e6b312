"""What takes the stacks of a rank that stands still: the form that the progress watch needs it in."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Protocol

__all__ = ["NoSnapshots", "SnapshotTaker", "ThreadFrames", "open_snapshots"]

logger = logging.getLogger(__name__)


class ThreadFrames(Protocol):
    """Where one thread stands."""

    @property
    def pid(self) -> int:
        """Its process."""
        ...

    @property
    def tid(self) -> int:
        """Its id."""
        ...

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def role(self) -> str:
        """A value of `TrainingThreadRole`."""
        ...

    @property
    def frames(self) -> tuple[str, ...]:
        """Functions, the innermost first."""
        ...

    @property
    def system_call(self) -> str | None:
        """The call that it is in; None where that is not known, or for none."""
        ...


class SnapshotTaker(Protocol):
    """Takes the stacks of a process's threads once, from outside."""

    def take(self, pid: int, children: Collection[int] = ()) -> Sequence[ThreadFrames]:
        """Return where the threads of a process and its children stand; empty where that is not allowed."""

    def forget(self, pid: int) -> None:
        """Forget a process that has ended."""

    def close(self) -> None:
        """Release everything; safe twice."""


class NoSnapshots:
    """Takes no stacks, as the user asked for with `--without stacks`."""

    def take(self, pid: int, children: Collection[int] = ()) -> Sequence[ThreadFrames]:
        """Return nothing."""
        return ()

    def forget(self, pid: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def open_snapshots(without: Collection[str] = ()) -> SnapshotTaker:
    """Return what takes the stacks of ranks that stand still.

    Where NumPy is missing, which the base install does not need otherwise, no stacks are taken.

    Args:
        without: Names that the user switched off.
    """
    if "stacks" in without:
        return NoSnapshots()
    try:
        from rootwalk.ebpf.stacks.snapshot import Snapshots
    except ImportError as error:
        logger.warning("no stacks of ranks that make no progress: %s", error)
        return NoSnapshots()
    return Snapshots()
