"""JSON as tools write it, made what the standard allows, while it is read; places stay nearly where they are.

    raw control characters in names          spaces
    NaN, Infinity, -inf as numbers           null: a time that is none leaves its event out
    bytes that are no UTF-8                  question marks

Kineto writes names of operators and kernels as they are, and ratios without a value as its language prints them.
"""

from __future__ import annotations

import codecs
import io
import re
from typing import Final

__all__ = ["PlainJson"]

# Between tokens these three are white space; within a name they are as wrong as the others.
_WHITE: Final = b"\t\n\r"
_CONTROL: Final = bytes(range(0x20))
_TO_SPACES: Final = bytes(0x20 if byte in _CONTROL else byte for byte in range(256))
_OTHERS: Final = bytes(byte for byte in _CONTROL if byte not in _WHITE)
# Each with its text first, which is found faster than what must stand around it.
_NO_NUMBERS: Final = tuple(
    (token, re.compile(token + rb"(?:\(\w{0,16}\))?(?=\s*(?:[,}\]]|\Z))"))
    for token in (b"NaN", b"nan", b"Infinity", b"inf", b"Inf")
)
_BEFORE_NUMBER: Final = re.compile(rb"[:,\[]\s*[-+]?\Z")
_MAX_BEFORE: Final = 8
_SIGNED_NULL: Final = re.compile(rb"[-+]null")
# A number that may go on in the next chunk, with what comes before it.
_TAIL: Final = re.compile(rb"[:,\[]\s*[-+]?[A-Za-z]{0,8}(?:\(\w{0,16})?\)?\s*$")
# Longer white space at the end of a chunk is none before a number.
_MAX_TAIL: Final = 64
# In names a control character is followed or preceded by other text, not by a token of JSON.
_IN_NAME: Final = re.compile(rb'[\t\n\r](?<=[^\s{}\[\],:"][\t\n\r])(?=[^\s{}\[\],:"])')


class PlainJson:
    """Reads a stream of JSON.

    Args:
        content: What is read, decompressed.

    Attributes:
        replaced: Control characters and numbers that were replaced.
    """

    def __init__(self, content: io.BufferedReader) -> None:
        self.replaced = 0
        self._content = content
        self._kept = b""

    def read(self, size_bytes: int) -> bytes:
        """Return about so many bytes, none at the end.

        Raises:
            DecodeError: If the stream is compressed and damaged.
        """
        chunk = self._kept
        start = 0
        # A chunk of which nothing is left would look like the end.
        while not start:
            new = self._content.read(size_bytes)
            chunk += new
            if not new:
                start = len(chunk)
                break
            tail = _TAIL.search(chunk, max(len(chunk) - _MAX_TAIL, 0))
            start = tail.start() if tail else len(chunk)
            if not chunk.isascii():
                start = min(start, _last_character(chunk))
        chunk, self._kept = chunk[:start], chunk[start:]
        return self._replace(chunk)

    def _replace(self, chunk: bytes) -> bytes:
        count = len(chunk) - len(chunk.translate(None, _OTHERS))
        count += len(_IN_NAME.findall(chunk))
        chunk = chunk.translate(_TO_SPACES)
        for token, pattern in _NO_NUMBERS:
            if token in chunk:
                chunk, numbers = _without_numbers(chunk, pattern)
                count += numbers
        if not chunk.isascii():
            try:
                chunk.decode()
            except UnicodeDecodeError:
                chunk, wrong = _without_wrong_bytes(chunk)
                count += wrong
        self.replaced += count
        return chunk


def _without_numbers(chunk: bytes, pattern: re.Pattern[bytes]) -> tuple[bytes, int]:
    """Return a chunk with nothing for numbers that are none, and how many; the same in a text does no harm."""
    count = 0

    def replace(match: re.Match[bytes]) -> bytes:
        nonlocal count
        before = chunk[max(match.start() - _MAX_BEFORE, 0) : match.start()]
        if not _BEFORE_NUMBER.search(before):
            return match[0]
        count += 1
        return b"null".ljust(len(match[0]))

    changed = pattern.sub(replace, chunk)
    if not count:
        return chunk, 0
    return _SIGNED_NULL.sub(b" null", changed), count


def _last_character(chunk: bytes) -> int:
    """Return where the last character begins if the chunk may end within it, else the end."""
    for back in range(1, min(4, len(chunk)) + 1):
        byte = chunk[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            return len(chunk) - back
    return len(chunk)


def _without_wrong_bytes(chunk: bytes) -> tuple[bytes, int]:
    """Return a chunk with question marks for bytes that are no UTF-8, and how many."""
    wrong = 0

    def mark(error: UnicodeError) -> tuple[str, int]:
        nonlocal wrong
        if not isinstance(error, UnicodeDecodeError):
            raise error
        wrong += error.end - error.start
        return "?" * (error.end - error.start), error.end

    codecs.register_error("rootwalk.mark", mark)
    text = chunk.decode("utf-8", "rootwalk.mark")
    return text.encode(), wrong
