"""By which exception a rank's program ends, in its ring: its type and place, never its text. Standard library only."""

from __future__ import annotations

import json
import mmap
from typing import NamedTuple

from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.ring_file import MAX_NUMBER
from rootwalk.instrumentation.ring_layout import (
    COUNTER,
    EXCEPTION,
    EXCEPTION_BYTES,
    EXCEPTION_OFFSET,
)

__all__ = ["SENT_OFFSET", "RankException", "decode_exception", "write_exception"]

BODY_OFFSET = EXCEPTION_OFFSET + EXCEPTION.size
MAX_BODY_BYTES = EXCEPTION_BYTES - EXCEPTION.size
SENT_OFFSET = EXCEPTION_OFFSET + EXCEPTION.size - COUNTER.size
MAX_KIND_LETTERS = 120


class RankException(NamedTuple):
    """An exception that ends a rank's program.

    Attributes:
        mono_ns: When it was found to be uncaught, ns.
        kind: Its type, with the module of one that is not built in.
        frames: Where it came from, innermost first, `function (file:line)`.
        is_sent: Whether a reader has sent it.
    """

    mono_ns: int
    kind: str
    frames: tuple[str, ...]
    is_sent: bool

    @property
    def text(self) -> str:
        """One line for people."""
        place = f" in {self.frames[0]}" if self.frames else ""
        return f"the rank's program ends by {self.kind}{place}"

    def attributes(self, pid: int) -> dict[str, int | str | tuple[str, ...]]:
        """Return the attributes of its event, for the process of a pid."""
        values: dict[str, int | str | tuple[str, ...]] = {
            semconv.PROCESS_PID: pid,
            semconv.EXCEPTION_TYPE: self.kind,
        }
        if self.frames:
            values[semconv.TRAINING_STACK_FRAMES] = self.frames
        return values


def write_exception(memory: mmap.mmap, mono_ns: int, kind: str, frames: list[str]) -> None:
    """Write an exception, when none was written before; the outermost frames are left out when there is no room."""
    if EXCEPTION.unpack_from(memory, EXCEPTION_OFFSET)[0]:
        return
    kept = list(frames)
    while True:
        body = json.dumps([kind[:MAX_KIND_LETTERS], kept]).encode()
        if len(body) <= MAX_BODY_BYTES or not kept:
            break
        kept.pop()
    memory[BODY_OFFSET : BODY_OFFSET + len(body)] = body
    COUNTER.pack_into(memory, EXCEPTION_OFFSET + COUNTER.size, len(body))
    COUNTER.pack_into(memory, EXCEPTION_OFFSET, mono_ns)  # last: then it is complete


def decode_exception(encoded: bytes) -> RankException | None:
    """Return the exception that ends the rank's program; None for none.

    Args:
        encoded: A copy of the exception's part of the ring.
    """
    mono_ns, length, is_sent = EXCEPTION.unpack_from(encoded)
    if not 0 < mono_ns < MAX_NUMBER or length > MAX_BODY_BYTES:
        return None
    try:
        kind, frames = json.loads(encoded[EXCEPTION.size : EXCEPTION.size + length])
        frames = tuple(_plain(one) for one in frames)
    except (TypeError, ValueError, RecursionError):
        return None  # not written by us
    return RankException(mono_ns, _plain(kind), frames, bool(is_sent))


def _plain(text: object) -> str:
    """Return a text that can be sent: without halves of a pair of code units, and without control characters."""
    said = str(text).encode("utf-8", "replace").decode()
    return "".join(letter if letter >= " " else "?" for letter in said)
