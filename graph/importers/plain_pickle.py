"""Read a pickle that holds only plain data: lists, tuples, dictionaries, text, numbers, true, false and none.

A pickle is a program, and Python's own reader runs it: it imports what the file names, and its table of earlier values
grows to whatever number the file says. This one knows only the instructions that make plain values; any other is an
error that names its byte, so nothing can be imported or called. What is kept is never more than a few times the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from rootwalk.instrumentation.errors import DecodeError

__all__ = ["load_plain"]

_MARK: Final = object()
# Of numbers longer than this a dump has none; turning very long ones into text takes Python quadratic time.
_MAX_INTEGER_BYTES: Final = 64
# Each makes at most one value, of some 70 bytes: half a gigabyte. Dumps of 20,000 calls with stacks have 2 million.
MAX_STEPS: Final = 8_000_000


class _Reader:
    """One pass over the bytes, with the stack and the table of earlier values that the format speaks of."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0
        self.stack: list[Any] = []
        self.known: dict[int, Any] = {}

    def take(self, count: int) -> bytes:
        end = self.place + count
        if end > len(self._data):
            raise DecodeError(
                f"cannot read pickle: saw its end at byte {len(self._data)} in a value of {count} bytes"
                f" from byte {self.place}; needs a whole file"
            )
        taken = self._data[self.place : end]
        self.place = end
        return taken

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def text(self, length: int) -> str:
        return self.take(length).decode("utf-8", "surrogatepass")

    def integer(self, length: int) -> int:
        if length > _MAX_INTEGER_BYTES:
            raise ValueError(f"an integer of {length} bytes")
        return int.from_bytes(self.take(length), "little", signed=True)

    def since_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                values = self.stack[index + 1 :]
                del self.stack[index:]
                return values
        raise ValueError("an end of values without their beginning")

    def extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError("values for a list that is none")
        self.stack[-1].extend(values)

    def update(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict) or len(values) % 2:
            raise ValueError("pairs for a dictionary that is none")
        # Tuples in tuples can take for ever to compare.
        if not all(isinstance(key, str | int) for key in values[::2]):
            raise TypeError("a key that is neither text nor a number")
        self.stack[-1].update(zip(values[::2], values[1::2], strict=True))

    def last(self, count: int) -> list[Any]:
        if len(self.stack) < count or any(value is _MARK for value in self.stack[-count:]):
            raise ValueError("too few values")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def remember(self, index: int) -> None:
        self.known[index] = self.stack[-1]


# What each instruction does, by its byte. Those that import, call or build objects are not here.
_STEPS: Final[dict[int, Callable[[_Reader], Any]]] = {
    ord("("): lambda r: r.stack.append(_MARK),
    ord("N"): lambda r: r.stack.append(None),
    0x88: lambda r: r.stack.append(True),
    0x89: lambda r: r.stack.append(False),
    ord("J"): lambda r: r.stack.append(r.number("<i")),
    ord("K"): lambda r: r.stack.append(r.number("<B")),
    ord("M"): lambda r: r.stack.append(r.number("<H")),
    0x8A: lambda r: r.stack.append(r.integer(r.number("<B"))),
    0x8B: lambda r: r.stack.append(r.integer(r.number("<I"))),
    ord("G"): lambda r: r.stack.append(r.number(">d")),
    ord("X"): lambda r: r.stack.append(r.text(r.number("<I"))),
    0x8C: lambda r: r.stack.append(r.text(r.number("<B"))),
    0x8D: lambda r: r.stack.append(r.text(r.number("<Q"))),
    ord("]"): lambda r: r.stack.append([]),
    ord("}"): lambda r: r.stack.append({}),
    ord(")"): lambda r: r.stack.append(()),
    ord("a"): lambda r: r.extend(r.last(1)),
    ord("e"): lambda r: r.extend(r.since_mark()),
    ord("s"): lambda r: r.update(r.last(2)),
    ord("u"): lambda r: r.update(r.since_mark()),
    ord("t"): lambda r: r.stack.append(tuple(r.since_mark())),
    0x85: lambda r: r.stack.append(tuple(r.last(1))),
    0x86: lambda r: r.stack.append(tuple(r.last(2))),
    0x87: lambda r: r.stack.append(tuple(r.last(3))),
    ord("q"): lambda r: r.remember(r.number("<B")),
    ord("r"): lambda r: r.remember(r.number("<I")),
    0x94: lambda r: r.remember(len(r.known)),
    ord("h"): lambda r: r.stack.append(r.known[r.number("<B")]),
    ord("j"): lambda r: r.stack.append(r.known[r.number("<I")]),
    0x80: lambda r: r.take(1),  # the format's version
    0x95: lambda r: r.take(8),  # how long the next part is
}
_STOP: Final = ord(".")


def load_plain(data: bytes, *, max_steps: int = MAX_STEPS) -> Any:
    """Return the value that a pickle holds.

    Args:
        data: The whole pickle, of any binary protocol (2 and later).
        max_steps: Instructions at most.

    Raises:
        DecodeError: If it is cut off, is no pickle, or holds anything but plain values; names the byte.

    Source:
        Lib/pickletools.py of CPython, which describes every instruction.
    """
    reader = _Reader(data)
    for _ in range(max_steps):
        start = reader.place
        code = reader.take(1)[0]
        if code == _STOP:
            break
        step = _STEPS.get(code)
        if step is None:
            raise DecodeError(
                f"cannot read pickle: saw instruction {bytes([code])!r} at byte {start};"
                " needs one that makes a plain value"
            )
        try:
            step(reader)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise DecodeError(
                f"cannot read pickle: saw {error} at byte {start}; needs plain values in order"
            ) from error
    else:
        raise DecodeError(
            f"cannot read pickle: saw more than {max_steps} instructions at byte {reader.place};"
            " needs a smaller file"
        )
    if len(reader.stack) != 1 or reader.stack[0] is _MARK:
        raise DecodeError(
            f"cannot read pickle: saw {len(reader.stack)} values at its end, byte {reader.place}; needs one"
        )
    return reader.stack[0]
