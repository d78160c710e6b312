"""Profiles as an OTLP request: what recurs is an entry of a table, and all else are numbers of entries.

    Sample(frames, value, attributes, link) ──▶ strings, functions, mappings, locations, stacks, links, attributes
    samples of one kind, rank and time ──▶ Profile ──▶ build_request ──▶ ExportProfilesServiceRequest

Entry 0 of each table means none; nothing is in a table twice, and nothing that is not used. Samples of one stack, of
equal attributes and link are one sample, whose value is their sum: a value and no times. Whoever makes frames keeps
paths and arguments out of them; nothing is made harmless here.

Source: opentelemetry-proto 1.10, `profiles/v1development/profiles.proto`. Entry 0 of the links is an empty message, as
sig-profiling's `profcheck` wants it; the comment in the proto prefers 16 and 8 zero bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.profiles.v1development import profiles_pb2 as messages

from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.text_enum import StrEnum

__all__ = [
    "Binary",
    "Frame",
    "FrameKind",
    "Profile",
    "Sample",
    "Value",
    "ValueKind",
    "build_request",
]

Value = str | bool | int
PROFILE_ID_BYTES = 16
TRACE_ID_BYTES = 16
SPAN_ID_BYTES = 8


class FrameKind(StrEnum):
    """Values of `profile.frame.type` that we send."""

    KERNEL = "kernel"
    NATIVE = "native"
    CPYTHON = "cpython"
    # No value of the conventions: what a device ran, and the framework's operator that asked for it.
    GPU = "gpu"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Binary:
    """A file that code was loaded from.

    Attributes:
        name: Without its folder.
        build_id: GNU build id, hexadecimal; None where it has none.
    """

    name: str
    build_id: str | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """One function of a stack.

    Attributes:
        kind: Whose frame it is.
        function: Its name; None where only its address is known.
        file: Source file without its folder; empty where it is not known.
        line: Where in it, from 1; 0 where it is not known.
        first_line: Where the function begins; 0 where it is not known.
        binary: What it was loaded from; None for a language's own frames.
        address: In the binary's own numbers, so that it is equal in every process; 0 where it is not known.
        package: Installed package of its source file; empty for code from elsewhere.
    """

    kind: FrameKind
    function: str | None
    file: str = ""
    line: int = 0
    first_line: int = 0
    binary: Binary | None = None
    address: int = 0
    package: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured in one stack.

    Attributes:
        frames: The innermost first.
        value: In the profile's unit.
        attributes: What tells it from other samples of the stack; few values each.
        link: Trace and span id of the span that it was measured in, 16 and 8 bytes; None where there is none.
    """

    frames: tuple[Frame, ...]
    value: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    link: tuple[bytes, bytes] | None = None


@dataclass(frozen=True, slots=True)
class ValueKind:
    """What a number counts, such as samples in count, or cpu in nanoseconds."""

    type: str
    unit: str


@dataclass(frozen=True, slots=True)
class Profile:
    """Samples of one kind, of one sender, from one stretch of time.

    Attributes:
        resource: Attributes of its sender.
        start_unix_ns: When the time began.
        duration_ns: How long it was.
        sample_type: What the samples' values count.
        samples: In any order.
        period_type: What lies between two samples; None where nothing does, because everything was measured.
        period: How much of it.
    """

    resource: Mapping[str, str | int]
    start_unix_ns: int
    duration_ns: int
    sample_type: ValueKind
    samples: Sequence[Sample]
    period_type: ValueKind | None = None
    period: int = 0


def build_request(profiles: Iterable[Profile], scope: str, version: str) -> bytes:
    """Return an export request; empty when no profile has a sample.

    Args:
        profiles: Those of equal resources next to each other share it.
        scope: Name of the instrumentation scope.
        version: Its version.

    Raises:
        ValueError: If a value is negative, or an id has not its length.
    """
    tables = _Tables()
    request = ExportProfilesServiceRequest()
    group: tuple[Mapping[str, str | int], Any] | None = None
    for profile in profiles:
        samples = _join(tables, profile.samples)
        if not samples:
            continue
        if group is None or group[0] != profile.resource:
            group = profile.resource, _add_scope(request, profile.resource, scope, version)
        message = group[1].profiles.add(
            sample_type=tables.value_type(profile.sample_type),
            time_unix_nano=profile.start_unix_ns,
            duration_nano=profile.duration_ns,
            samples=samples,
        )
        if profile.period_type is not None and profile.period:
            message.period_type.CopyFrom(tables.value_type(profile.period_type))
            message.period = profile.period
        message.profile_id = _profile_id(profile, message)
    if group is None:
        return b""
    tables.fill(request.dictionary)
    return bytes(request.SerializeToString())


def _add_scope(request: Any, resource: Mapping[str, str | int], scope: str, version: str) -> Any:
    sender = request.resource_profiles.add(schema_url=semconv.SCHEMA_URL)
    # Names in full: Pyroscope refuses a resource that takes them from the table.
    sender.resource.attributes.extend(
        KeyValue(key=key, value=_any_value(value)) for key, value in resource.items()
    )
    part = sender.scope_profiles.add(schema_url=semconv.SCHEMA_URL)
    part.scope.name, part.scope.version = scope, version
    return part


def _join(tables: _Tables, samples: Iterable[Sample]) -> list[Any]:
    """Return samples as messages, those of one identity as one; a value of 0 tells nothing and is left out."""
    values: dict[tuple[int, tuple[int, ...], int], int] = {}
    for sample in samples:
        if sample.value < 0:
            raise ValueError(f"cannot send a sample of {sample.value}: needs 0 or more")
        if not sample.value:
            continue
        attributes = sorted(tables.attribute(*pair) for pair in sample.attributes.items())
        key = tables.stack(sample.frames), tuple(attributes), tables.link(sample.link)
        values[key] = values.get(key, 0) + sample.value
    return [
        messages.Sample(
            stack_index=stack, attribute_indices=attributes, link_index=link, values=[value]
        )
        for (stack, attributes, link), value in values.items()
    ]


def _profile_id(profile: Profile, message: Any) -> bytes:
    """Return an id that the same profile has whenever it is sent."""
    who = repr(sorted(profile.resource.items())).encode()
    content = message.SerializeToString(deterministic=True)
    return hashlib.blake2b(who + content, digest_size=PROFILE_ID_BYTES).digest()


def _any_value(value: Value) -> Any:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    return (
        AnyValue(int_value=value)
        if isinstance(value, int)
        else AnyValue(string_value=_valid(value))
    )


def _valid(text: str) -> str:
    """Return a text that UTF-8 can say."""
    return text.encode(errors="replace").decode()


class _Table:
    """The messages of one table, each once; entry 0 means none."""

    def __init__(self, zero: Any) -> None:
        self.entries = [zero]
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, build: Callable[[], Any]) -> int:
        """Return the number of an entry, which is built when it is new.

        Args:
            key: What it is built from.
            build: Makes it.
        """
        number = self._numbers.get(key)
        if number is None:
            entry = build()  # may add entries of its own, to other tables
            number = self._numbers[key] = len(self.entries)
            self.entries.append(entry)
        return number


class _Tables:
    """The tables of one request."""

    def __init__(self) -> None:
        self._strings = _Table("")
        self._mappings = _Table(messages.Mapping())
        self._functions = _Table(messages.Function())
        self._locations = _Table(messages.Location())
        self._stacks = _Table(messages.Stack())
        self._links = _Table(messages.Link())
        self._attributes = _Table(messages.KeyValueAndUnit())
        # Whoever sums hands the same stack in again and again: its 40 frames need not be looked up each time.
        self._same: dict[int, tuple[tuple[Frame, ...], int]] = {}

    def fill(self, dictionary: Any) -> None:
        """Write the tables into a dictionary."""
        dictionary.string_table.extend(self._strings.entries)
        dictionary.mapping_table.extend(self._mappings.entries)
        dictionary.function_table.extend(self._functions.entries)
        dictionary.location_table.extend(self._locations.entries)
        dictionary.stack_table.extend(self._stacks.entries)
        dictionary.link_table.extend(self._links.entries)
        dictionary.attribute_table.extend(self._attributes.entries)

    def string(self, text: str) -> int:
        """Return the number of a string; 0 for the empty one."""
        valid = _valid(text)
        return self._strings.number(valid, lambda: valid) if valid else 0

    def value_type(self, kind: ValueKind) -> Any:
        """Return what a number counts, as a message."""
        return messages.ValueType(
            type_strindex=self.string(kind.type), unit_strindex=self.string(kind.unit)
        )

    def attribute(self, key: str, value: Value) -> int:
        """Return the number of an attribute."""
        # The type is part of it: to Python True, 1 and 1.0 are equal.
        return self._attributes.number(
            (key, isinstance(value, bool), value),
            lambda: messages.KeyValueAndUnit(
                key_strindex=self.string(key), value=_any_value(value)
            ),
        )

    def link(self, ids: tuple[bytes, bytes] | None) -> int:
        """Return the number of a link; 0 for none.

        Raises:
            ValueError: If an id has not its length, or is zero.
        """
        if ids is None:
            return 0
        trace_id, span_id = ids
        lengths = (len(trace_id), len(span_id))
        if lengths != (TRACE_ID_BYTES, SPAN_ID_BYTES) or not (any(trace_id) and any(span_id)):
            raise ValueError(f"cannot link to span {trace_id.hex()}-{span_id.hex()}: no such id")
        return self._links.number(ids, lambda: messages.Link(trace_id=trace_id, span_id=span_id))

    def stack(self, frames: tuple[Frame, ...]) -> int:
        """Return the number of a stack; 0 for one without frames."""
        if not frames:
            return 0
        known = self._same.get(id(frames))
        if known is None:
            number = self._stacks.number(
                frames, lambda: messages.Stack(location_indices=[self._location(f) for f in frames])
            )
            known = self._same[id(frames)] = frames, number
        return known[1]

    def _location(self, frame: Frame) -> int:
        def build() -> Any:
            told = [self.attribute(semconv.PROFILE_FRAME_TYPE, frame.kind.value)]
            if frame.package:
                told.append(self.attribute(semconv.TRAINING_FRAME_PACKAGE, frame.package))
            location = messages.Location(
                mapping_index=self._mapping(frame.binary),
                address=frame.address,
                attribute_indices=told,
            )
            if frame.function is not None:
                location.lines.add(function_index=self._function(frame), line=frame.line)
            return location

        return self._locations.number(frame, build)

    def _function(self, frame: Frame) -> int:
        name, file, first_line = frame.function or "", frame.file, frame.first_line
        return self._functions.number(
            (name, file, first_line),
            lambda: messages.Function(
                name_strindex=self.string(name),
                filename_strindex=self.string(file),
                start_line=first_line,
            ),
        )

    def _mapping(self, binary: Binary | None) -> int:
        """Return the number of a binary; where it lies in memory is left out, for that differs with every process."""
        if binary is None:
            return 0
        key = semconv.PROCESS_EXECUTABLE_BUILD_ID_GNU
        build_id = binary.build_id
        return self._mappings.number(
            binary,
            lambda: messages.Mapping(
                filename_strindex=self.string(binary.name),
                attribute_indices=[] if build_id is None else [self.attribute(key, build_id)],
            ),
        )
