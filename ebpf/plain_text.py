"""Names that anybody may have chosen, as one line of bounded length."""

from __future__ import annotations

__all__ = ["plain_name"]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def plain_name(raw: bytes, limit: int = 64) -> str:
    r"""Return a name up to its first zero byte, with a sign in place of whatever cannot be printed.

    >>> plain_name(b"kill\0\0\0"), plain_name(b"a\nb\xff") == "a\ufffdb\ufffd"
    ('kill', True)
    """
    text = raw.split(b"\0", 1)[0].decode(errors="replace")
    return "".join(letter if letter.isprintable() else REPLACEMENT for letter in text)[:limit]
