"""A profile in Chrome's trace format as a stream of events: never more of it in memory than one event and a chunk.

    {"distributedInfo": {...}, "traceEvents": [{...}, {...}, ...], "baseTimeNanoseconds": 1712...}     or the list alone

The JSON is parsed by ijson (its C back end, yajl); what stands beside the events may come before or after them.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import ijson

from rootwalk.graph.importers.content import open_content
from rootwalk.graph.importers.formats import BrokenPart, ReadSoFar
from rootwalk.graph.importers.json_limits import JsonLimits
from rootwalk.graph.importers.plain_json import PlainJson
from rootwalk.instrumentation.errors import DecodeError

__all__ = ["TraceFile"]

# Of the content at a time.
CHUNK_BYTES: Final = 256 * 1024
# How often it is said how far it is: a second or so.
TOLD_BYTES: Final = 64 * CHUNK_BYTES
# What is kept of what stands beside the events.
_HEADER: Final = ("distributedInfo", "baseTimeNanoseconds")
_HINT: Final = (
    "what comes before it is imported, without the device's times; a new profile tells at its end from when its"
    " times count, so they may be of another age"
)
_NEEDS: Final = 'needs JSON with "traceEvents", as torch.profiler exports it'


class TraceFile:
    """One file, read once.

    Args:
        path: A file, plain or compressed.

    Attributes:
        header: What is known beside the events, by name; whole after the last part.
        events: Events so far.
        is_whole: Whether the document was read to its end.
        repaired: Raw control characters, and numbers that are none, that were replaced.
        left_out: Events that could not be read.
    """

    def __init__(self, path: Path) -> None:
        self.header: dict[str, Any] = {}
        self.events = 0
        self.is_whole = False
        self.repaired = 0
        self.left_out = 0
        self._path = path

    def read(self, take: Callable[[dict[str, Any]], None]) -> Iterator[BrokenPart | ReadSoFar]:
        """Give every event away, and yield what cannot be read, and how far it is.

        Args:
            take: Given each event; raises DecodeError for one that is broken.

        Raises:
            DecodeError: If there is no list of events in it.
            OSError: If it cannot be read.
        """
        position = 0
        parser: _Parser | None = None
        with open_content(self._path) as raw:
            content, limits = PlainJson(raw), JsonLimits()
            while not self.is_whole:
                try:
                    chunk = content.read(CHUNK_BYTES)
                    limits.check(chunk)
                except DecodeError as error:
                    yield BrokenPart(f"byte {position} of its content", error)
                    break
                parser = parser or _Parser(chunk)
                wrong = parser.feed(chunk)
                yield from self._give(parser, position + len(chunk), take)
                if wrong is not None:
                    place = self._find_error(position, chunk)
                    yield BrokenPart(f"byte {place}", _no_json(wrong, place))
                    break
                position += len(chunk)
                self.is_whole = not chunk
                if chunk and position % TOLD_BYTES == 0:
                    yield ReadSoFar(position)
            self.repaired = content.replaced
        if not self.events and self.is_whole:
            raise DecodeError(
                f"cannot read the profile: saw no events in {position} bytes of JSON; {_NEEDS}"
            )

    def _give(
        self, parser: _Parser, position: int, take: Callable[[dict[str, Any]], None]
    ) -> Iterator[BrokenPart]:
        self.header.update(parser.take_header())
        for event in parser.take_events():
            self.events += 1
            try:
                take(_as_object(event))
            except DecodeError as error:
                self.left_out += 1
                yield BrokenPart(f"event {self.events} before byte {position}", error)

    def _find_error(self, position: int, chunk: bytes) -> int:
        """Return the byte at which the content stops to be JSON; it lies in this chunk, or at its beginning."""
        parser = ijson.basic_parse_coro(ijson.sendable_list())
        with open_content(self._path) as raw:
            content = PlainJson(raw)
            left = position
            while left:
                part = content.read(min(left, CHUNK_BYTES))
                left -= len(part)
                parser.send(part)
        for offset in range(len(chunk)):
            try:
                parser.send(chunk[offset : offset + 1])
            except (ijson.JSONError, decimal.DecimalException):
                return position + offset
        return position + len(chunk)


class _Parser:
    """Push parsers over one stream: one for the events, one for each part of the header."""

    def __init__(self, start: bytes) -> None:
        prefix = "item" if start.lstrip().startswith(b"[") else "traceEvents.item"
        self._sinks = {name: ijson.sendable_list() for name in (prefix, *_HEADER)}
        self._events = self._sinks[prefix]
        self._parsers = [ijson.items_coro(sink, name) for name, sink in self._sinks.items()]

    def feed(self, chunk: bytes) -> ijson.JSONError | None:
        """Parse the next chunk, empty at the end; return what is wrong with it: what came before it can be taken."""
        wrong: ijson.JSONError | None = None
        for parser in self._parsers:
            try:
                if chunk:
                    parser.send(chunk)
                else:
                    parser.close()
            except ijson.JSONError as error:
                wrong = wrong or error
            except decimal.DecimalException:
                wrong = wrong or ijson.JSONError("a number beyond all measure")
        return wrong

    def take_events(self) -> list[Any]:
        """Return the events since the last call."""
        taken = list(self._events)
        self._events.clear()
        return taken

    def take_header(self) -> dict[str, Any]:
        """Return the parts of the header since the last call."""
        return {name: self._sinks[name][-1] for name in _HEADER if self._sinks[name]}


def _as_object(event: Any) -> dict[str, Any]:
    if isinstance(event, dict):
        return event
    kind = "a list" if isinstance(event, list) else str(event)[:40]
    raise DecodeError(f"cannot read the event: saw {kind}; needs an object")


def _no_json(error: ijson.JSONError, place: int) -> DecodeError:
    """Return what the parser says, without the drawing that points at the place."""
    first = str(error).removeprefix("b'").partition("\n")[0].partition("\\n")[0].rstrip(".' ")
    if "premature EOF" in first:
        text = f"cannot read the profile: saw its end after {place} bytes in mid-document; needs a whole file"
        return DecodeError(text, hint=_HINT)
    return DecodeError(
        f"cannot read the profile: saw {first.lower()}; {_NEEDS}",
        hint=_HINT,
    )
