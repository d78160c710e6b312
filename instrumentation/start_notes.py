"""Notes of processes in which the instrumentation could not start, for `rootwalk run` and `rootwalk check`.

A small JSON file beside the rings, one a process. Standard library only, for Python 3.7 and newer, and without any
other module of Rootwalk: the bootstrap loads this file by its path when nothing else can be imported.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

__all__ = ["describe_notes", "leave_note", "remove_notes"]

SUFFIX = ".note"
# An error's text in the note: one line on a terminal.
MAX_TEXT = 200
# More processes than a host has ranks; each note costs a file of shared memory.
MAX_NOTES = 256


def note_directory() -> Path:
    """Return the folder of this user's notes, which is the folder of its rings (`ring_layout.ring_directory`)."""
    override = os.environ.get("ROOTWALK_RING_DIRECTORY")
    if override:
        return Path(override)
    root = Path("/dev/shm")  # noqa: S108  (shared memory, not a temporary file)
    return (root if root.is_dir() else Path("/tmp")) / f"rootwalk-{os.getuid()}"  # noqa: S108


def leave_note(error: BaseException) -> None:
    """Write down why this process is not instrumented; does nothing where that cannot be written."""
    try:
        folder = note_directory()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sum(1 for path in folder.iterdir() if path.suffix == SUFFIX) >= MAX_NOTES:
            return
        note = {
            "job": os.environ.get("ROOTWALK_JOB", ""),
            "pid": os.getpid(),
            "python": ".".join(str(part) for part in sys.version_info[:3]),
            "error": f"{type(error).__name__}: {error}"[:MAX_TEXT],
        }
        path = folder / f"start-{os.getpid()}{SUFFIX}"
        path.write_text(json.dumps(note), encoding="utf-8")
    except OSError:
        return


def _read_notes(job: str | None) -> list[tuple[Path, dict[str, object]]]:
    """Return the notes of a job, or of any where None is given; those of other users where this one may read them."""
    own = note_directory()
    found = []
    for folder in sorted({own, *own.parent.glob("rootwalk-*")}):
        try:
            paths = sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)
        except OSError:
            continue
        for path in paths:
            try:
                note = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue  # gone meanwhile, or not ours
            if isinstance(note, dict) and (job is None or note.get("job") == job):
                found.append((path, note))
    return found


def describe_notes(job: str | None = None) -> tuple[str, int]:
    """Return one sentence on the processes that are not instrumented, and how many they are; empty for none.

    Args:
        job: Which job; None for all whose notes are still there.
    """
    notes = [note for _, note in _read_notes(job)]
    if not notes:
        return "", 0
    reasons = sorted({f"{note.get('error')} (Python {note.get('python')})" for note in notes})
    count, more = len(notes), f" and {len(reasons) - 1} other errors" if len(reasons) > 1 else ""
    what = "process" if count == 1 else "processes"
    return f"not instrumented in {count} {what}: {reasons[0]}{more}", count


def remove_notes(job: str) -> None:
    """Remove the notes of a job that has ended."""
    for path, _ in _read_notes(job):
        try:
            path.unlink()
        except OSError:
            continue
