"""How far a journal has been sent on: one small file beside the segments for each target.

Whoever removes segments asks `find_floor` first. A file that cannot be read holds everything back: what it said may
be lost (power cut), what it guards must not be.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Final

__all__ = [
    "cursor_path",
    "find_floor",
    "list_cursors",
    "read_cursor",
    "read_url_and_position",
    "remove_cursors",
    "save_cursor",
]

_PREFIX: Final = "forward-"
_SUFFIX: Final = ".json"


def cursor_path(directory: Path, url: str) -> Path:
    """Return the file of one target's cursor."""
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    return directory / f"{_PREFIX}{name}{_SUFFIX}"


def list_cursors(directory: Path) -> list[Path]:
    """Return the cursors' files, in order of their names; none without a journal."""
    return sorted(directory.glob(f"{_PREFIX}*{_SUFFIX}"))


def read_cursor(path: Path) -> tuple[int, int]:
    """Return (segment, end_bytes) up to where a target needs nothing more; (0, 0) when the file is damaged.

    Raises:
        FileNotFoundError: If there is no such cursor.
    """
    return read_url_and_position(path)[1]


def read_url_and_position(path: Path) -> tuple[str, tuple[int, int]]:
    """Return a cursor's target and its position, as `read_cursor`; the file's name when it is damaged.

    Raises:
        FileNotFoundError: If there is no such cursor.
    """
    try:
        said = json.loads(path.read_bytes())
        return str(said["url"]), (int(said["segment"]), int(said["end_bytes"]))
    except (ValueError, KeyError, TypeError):
        return path.name, (0, 0)


def save_cursor(
    path: Path, url: str, position: tuple[int, int], *, is_durable: bool = False
) -> None:
    """Replace a cursor.

    Args:
        path: From `cursor_path`.
        url: The target, for people who look.
        position: (segment, end_bytes) up to where it needs nothing more.
        is_durable: Whether it must survive a power cut from now on. A later one need not: requests may be sent twice.

    Raises:
        OSError: If it cannot be written; the old one is as it was.
    """
    new = path.with_name(path.name + ".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump({"url": url, "segment": position[0], "end_bytes": position[1]}, file)
        if is_durable:
            file.flush()
            os.fsync(file.fileno())
    new.replace(path)


def find_floor(directory: Path) -> int | None:
    """Return the first segment that a target still needs; None when nothing is to be sent on."""
    floors = []
    for path in list_cursors(directory):
        try:
            floors.append(read_cursor(path)[0])
        except FileNotFoundError:
            continue
    return min(floors, default=None)


def remove_cursors(directory: Path) -> None:
    """Forget all targets."""
    for path in directory.glob(f"{_PREFIX}*"):
        path.unlink(missing_ok=True)
