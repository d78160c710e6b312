"""The small text files in which Linux publishes its counters: read whole, and taken apart.

A file that is not there, or may not be read, is the empty text, and a number that it does not hold is None: what
cannot be read is not known, and never 0. Knows nothing of what the numbers mean.

Cost: 6 to 8 us a file beyond what the kernel takes to write it.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["parse_list", "parse_number", "parse_pairs", "read_number", "read_text"]

CHUNK_BYTES = 65_536
# More than any kernel can be built for; a list that names more is not one.
MAX_LIST_NUMBER = 65_535


def read_text(path: str | Path, *, folder: int | None = None, most_bytes: int | None = None) -> str:
    """Return what a file holds; empty when it is not there, or not readable, or goes away meanwhile.

    Args:
        path: The file.
        folder: Descriptor of the folder that a relative path is below; None for the working directory.
        most_bytes: How much of it is wanted, for files of which only the beginning matters; None for all.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    parts = []
    try:
        if most_bytes is not None:
            parts.append(os.read(descriptor, most_bytes))
        else:
            while part := os.read(descriptor, CHUNK_BYTES):
                parts.append(part)
    except OSError:  # the process, group or device went away, or has no value to give now
        return ""
    finally:
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace")


def parse_number(text: str) -> int | None:
    """Return the whole number that a text is; None when it is none, such as "max" or "<not supported>"."""
    word = text.strip()
    is_number = word.removeprefix("-").isdecimal() and word.isascii()
    return int(word) if is_number else None


def read_number(path: str | Path) -> int | None:
    """Return the whole number that a file holds; None when there is none."""
    return parse_number(read_text(path))


def parse_pairs(text: str, separator: str = " ") -> dict[str, int]:
    """Return the numbers of a file with one name and one number a line; other lines are left out."""
    pairs = {}
    for line in text.splitlines():
        name, _, word = line.partition(separator)
        number = parse_number(word)
        if number is not None:
            pairs[name.strip()] = number
    return pairs


def parse_list(text: str) -> frozenset[int]:
    """Return the numbers of a list such as "0-3,8,10-11"; empty when it is not one.

    Source:
        Documentation/admin-guide/kernel-parameters.rst, "cpu lists", as the kernel prints them.
    """
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        low, high = parse_number(first), parse_number(last or first)
        if low is None or high is None or not 0 <= low <= high <= MAX_LIST_NUMBER:
            return frozenset()
        numbers.update(range(low, high + 1))
    return frozenset(numbers)
