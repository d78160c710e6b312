"""Whose rings are whose: the users of processes and of jobs on this host, and text of other users made printable."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["JobOwners", "printable", "read_users"]

MAX_TEXT_CHARS = 300


def read_users(pid: int) -> frozenset[int] | None:
    """Return the real, effective, saved and file system user of a process; None when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("Uid:"):
            return frozenset(int(word) for word in line.split()[1:])
    return None


class JobOwners:
    """The user of each job whose rings are read: the first one, so that another user cannot add ranks to it.

    A user who gives a job the name of another user's before that begins takes the name; names of jobs that others
    cannot guess prevent it.
    """

    def __init__(self) -> None:
        self._by_path: dict[Path, tuple[str, int]] = {}

    def note(self, path: Path, job: str, owner: int) -> None:
        """Remember that a ring of a job is read."""
        self._by_path[path] = (job, owner)

    def keep(self, paths: Iterable[Path]) -> None:
        """Forget the rings that are not read any more."""
        self._by_path = {path: self._by_path[path] for path in paths if path in self._by_path}

    def of(self, job: str) -> int | None:
        """Return the user of a job; None of one that no ring that is read belongs to."""
        return next((owner for name, owner in self._by_path.values() if name == job), None)


def printable(text: str) -> str:
    """Return a text on one line without control characters, escape sequences and reordering marks, cut when long."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain if len(plain) <= MAX_TEXT_CHARS else plain[:MAX_TEXT_CHARS] + "…"
