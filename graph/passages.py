"""What a verdict says, before it takes a form: a headline and labelled rows, the same for text, Markdown and HTML.

Names come from other people's machines: what a terminal or a browser would act on is made visible here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["JOINT", "Passage", "flowing", "visible"]

# Keeps a number and its unit on one line; a plain space where lines do not break.
JOINT = "\N{NO-BREAK SPACE}"

_COLUMN_GAP = re.compile(" {2,}")
_KEPT = ("\n", JOINT)


@dataclass(frozen=True, slots=True)
class Passage:
    """One answer: its first line, unwrapped, and what follows as (label, text)."""

    headline: str
    rows: tuple[tuple[str, str], ...] = ()


def flowing(text: str) -> str:
    """Return a row's text without columns, which only the plain text has.

    >>> flowing("node              unexplained 0.1 s")
    'node; unexplained 0.1 s'
    """
    return _COLUMN_GAP.sub("; ", text)


def visible(text: str) -> str:
    r"""Return text with every character that does not show as itself replaced by one that does; line ends stay.

    Control characters, and those that turn the direction of the text around, let a name pose as something else.

    >>> visible("a\x1b[31m\u202eb")
    'a⟨U+001B⟩[31m⟨U+202E⟩b'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT else f"⟨U+{ord(c):04X}⟩" for c in text)
