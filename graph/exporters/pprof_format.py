"""pprof's format: a profile as one protobuf message, written without a generated class for it.

    strings, mappings, functions, locations ──▶ numbers ──▶ samples ──▶ render

Strings are numbers from 0, which is the empty one; mappings, functions and locations are numbers from 1, and 0 is none.
Each is in the file once, however often it is named.

Source: google/pprof, proto/profile.proto; the numbers of fields below are its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rootwalk.graph.exporters.wire import message, number, packed

__all__ = ["Function", "Label", "Line", "Location", "Mapping", "PprofFile", "ValueType"]


class ValueType(NamedTuple):
    """What a number counts: such as cpu, in nanoseconds."""

    type: str
    unit: str


class Label(NamedTuple):
    """What tells a sample from others: a text, or a number with its unit."""

    key: str
    value: str | int
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A file that is mapped; addresses are 0 where they are not known."""

    start: int
    limit: int
    offset: int
    file: str
    build_id: str
    has_functions: bool


@dataclass(frozen=True, slots=True)
class Function:
    """A function; lines are 0 where they are not known."""

    name: str
    system_name: str
    file: str
    first_line: int


@dataclass(frozen=True, slots=True)
class Line:
    """A function in a place, by its number, and the line and column there."""

    function: int
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a program: the number of its mapping, its address, its functions, the innermost inlined one first."""

    mapping: int
    address: int
    lines: tuple[Line, ...]


class PprofFile:
    """A profile under construction.

    Args:
        sample_types: What the values of each sample count, in their order.
    """

    def __init__(self, sample_types: Sequence[ValueType]) -> None:
        self._sample_types = list(sample_types)
        self._strings: dict[str, int] = {"": 0}
        self._numbers: dict[Hashable, int] = {}
        self._counts = {Mapping: 0, Function: 0, Location: 0}
        self._entries: list[bytes] = []
        self._samples: dict[tuple[tuple[int, ...], tuple[Label, ...]], list[int]] = {}

    @property
    def sample_count(self) -> int:
        """How many samples it has."""
        return len(self._samples)

    def mapping(self, mapping: Mapping) -> int:
        """Return the number of a mapping."""
        return self._numbers.get(mapping) or self._add(
            3,
            mapping,
            number(2, mapping.start)
            + number(3, mapping.limit)
            + number(4, mapping.offset)
            + number(5, self._string(mapping.file))
            + number(6, self._string(mapping.build_id))
            + number(7, mapping.has_functions),
        )

    def function(self, function: Function) -> int:
        """Return the number of a function."""
        return self._numbers.get(function) or self._add(
            5,
            function,
            number(2, self._string(function.name))
            + number(3, self._string(function.system_name))
            + number(4, self._string(function.file))
            + number(5, function.first_line),
        )

    def location(self, location: Location) -> int:
        """Return the number of a location."""
        known = self._numbers.get(location)
        if known is not None:
            return known
        lines = [
            number(1, line.function) + number(2, line.line) + number(3, line.column)
            for line in location.lines
        ]
        body = number(2, location.mapping) + number(3, location.address)
        body += b"".join(message(4, line) for line in lines)
        return self._add(4, location, body)

    def add_sample(
        self, locations: tuple[int, ...], labels: tuple[Label, ...], values: Sequence[int]
    ) -> None:
        """Add values to those of the sample with these locations, leaf first, and labels in this order."""
        key = locations, labels
        known = self._samples.get(key)
        if known is None:
            self._samples[key] = list(values)
            return
        for index, value in enumerate(values):
            known[index] += value

    def render(
        self,
        start_unix_ns: int,
        duration_ns: int,
        period_type: ValueType | None,
        period: int,
        default_type: str = "",
    ) -> bytes:
        """Return the file, not yet compressed.

        Args:
            start_unix_ns: When the profile began.
            duration_ns: How long it was.
            period_type: What lies between two samples; None where nothing does.
            period: How much of it.
            default_type: The type among `sample_types` that is shown first; empty for the last.
        """
        parts = [message(1, self._value_type(kind)) for kind in self._sample_types]
        parts += [
            message(2, packed(1, locations) + packed(2, values) + self._labels(labels))
            for (locations, labels), values in self._samples.items()
        ]
        parts += self._entries
        parts += [number(9, start_unix_ns), number(10, duration_ns)]
        if period_type is not None:
            parts += [message(11, self._value_type(period_type)), number(12, period)]
        parts.append(number(14, self._string(default_type)))
        # Last, for everything before has added its own.
        parts += [message(6, text.encode(errors="replace")) for text in self._strings]
        return b"".join(parts)

    def _add(self, field: int, entry: Mapping | Function | Location, body: bytes) -> int:
        self._counts[type(entry)] += 1
        found = self._numbers[entry] = self._counts[type(entry)]
        self._entries.append(message(field, number(1, found) + body))
        return found

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _value_type(self, kind: ValueType) -> bytes:
        return number(1, self._string(kind.type)) + number(2, self._string(kind.unit))

    def _labels(self, labels: Iterable[Label]) -> bytes:
        parts = []
        for key, value, unit in labels:
            if isinstance(value, str):
                body = number(2, self._string(value))
            else:
                body = number(3, value) + number(4, self._string(unit))
            parts.append(message(3, number(1, self._string(key)) + body))
        return b"".join(parts)
