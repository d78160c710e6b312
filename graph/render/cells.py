"""Text in a terminal's cells: some letters take two, marks on letters none."""

from __future__ import annotations

import unicodedata

__all__ = ["fit", "width"]


def fit(text: str, cells: int) -> str:
    """Return text in exactly so many cells: filled up with blanks, or cut with an ellipsis.

    >>> fit("step 4", 8), fit("step 412", 6), fit("进度 4", 4)
    ('step 4  ', 'step …', '进… ')
    """
    if width(text) <= cells:
        return text + " " * (cells - width(text))
    kept = text
    while width(kept) > cells - 1:
        kept = kept[:-1]
    return kept + "…" + " " * (cells - 1 - width(kept))


def width(text: str) -> int:
    """Return how many cells a text takes."""
    return sum(_cells(letter) for letter in text)


def _cells(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
