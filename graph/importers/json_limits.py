"""Bounds on a stream of JSON before a parser sees it: how deep it is nested, and how long its numbers are.

    {"a": [[[[ ...         a parser that keeps the names of all levels needs memory by the square of their number
    12345 ... 67890        an integer of thousands of digits is none that a profile has, and ends some parsers

The stream is looked through chunk by chunk; what stands in a string counts for neither.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rootwalk.graph.columns import BoolArray
from rootwalk.instrumentation.errors import DecodeError

__all__ = ["MAX_DEPTH", "MAX_NUMBER_BYTES", "JsonLimits"]

# PyTorch's profiles have eight levels, lists of shapes in the arguments of an operator included.
MAX_DEPTH: Final = 64
# A float of 64 bits has 17 significant digits; written out without an exponent it has at most 325.
MAX_NUMBER_BYTES: Final = 400
_QUOTE, _BACKSLASH = 0x22, 0x5C
_STEP: Final = np.zeros(256, dtype=np.int8)
_STEP[[ord("["), ord("{")]] = 1
_STEP[[ord("]"), ord("}")]] = -1
_IS_NUMBER: Final = np.zeros(256, dtype=np.bool_)
_IS_NUMBER[[ord(c) for c in "0123456789+-.eE"]] = True


class JsonLimits:
    """Looks through one stream, in order."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self._number_bytes = 0

    def check(self, chunk: bytes) -> None:
        """Look through the next bytes.

        Raises:
            DecodeError: If they exceed a limit.
        """
        if not chunk:
            return
        content = np.frombuffer(chunk, dtype=np.uint8)
        is_outside = self._outside(content, chunk)
        depths = np.cumsum(np.where(is_outside, _STEP[content], 0), dtype=np.int64) + self._depth
        if int(depths.max()) > MAX_DEPTH:
            raise DecodeError(
                f"cannot read the profile: saw more than {MAX_DEPTH} levels of lists and objects in each other; "
                "needs JSON as torch.profiler exports it"
            )
        self._depth = int(depths[-1])
        self._check_numbers(is_outside & _IS_NUMBER[content])

    def _outside(
        self, content: np.ndarray[tuple[int], np.dtype[np.uint8]], chunk: bytes
    ) -> BoolArray:
        """Return which bytes stand in no string."""
        is_quote = content == _QUOTE
        if self._is_escaped:
            is_quote[0] = False
        escaped = False
        if b"\\" in chunk:
            escaped = self._without_escaped(content, is_quote)
        self._is_escaped = escaped
        is_inside = (np.cumsum(is_quote) + int(self._is_in_string)) % 2 == 1
        self._is_in_string = bool(is_inside[-1])
        return np.asarray(~is_inside, dtype=np.bool_)

    def _without_escaped(
        self, content: np.ndarray[tuple[int], np.dtype[np.uint8]], is_quote: BoolArray
    ) -> bool:
        """Take from the quotes those that are escaped; return whether the next byte is."""
        slashes = np.flatnonzero(content == _BACKSLASH)
        # Of a run of backslashes every second one escapes what follows; the first may be escaped itself.
        starts = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
        runs = np.diff(starts, append=slashes.size)
        begins = slashes[starts]
        lengths = runs - ((begins == 0) & self._is_escaped)
        followers = begins + runs
        odd = lengths % 2 == 1
        inside = followers[odd & (followers < content.size)]
        is_quote[inside] = False
        return bool((odd & (followers == content.size)).any())

    def _check_numbers(self, is_number: BoolArray) -> None:
        others = np.flatnonzero(~is_number)
        first = int(others[0]) if others.size else is_number.size
        longest = self._number_bytes + first
        if others.size:
            longest = max(longest, int(np.diff(others, append=is_number.size).max()) - 1)
        self._number_bytes = is_number.size - 1 - int(others[-1]) if others.size else longest
        if longest > MAX_NUMBER_BYTES:
            raise DecodeError(
                f"cannot read the profile: saw a number of more than {MAX_NUMBER_BYTES} characters; needs JSON as "
                "torch.profiler exports it"
            )
