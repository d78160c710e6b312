"""Profiles of a store as one pprof file, gzip-compressed as its readers expect.

A store has profiles of several kinds, ranks and times; a pprof file has one table of samples with a column a kind. So
samples of equal stacks and labels are one, whose values are sums, and what told the profiles apart is labels: rank,
host, job, the sample's own attributes, the span that it links to and that span's step. Where samples were counted every
so often, a column more has what they stand for, count times period, as periods may differ from profile to profile.

Not kept: the times of single samples, units of attributes, and what pprof has no place for.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rootwalk.graph.exporters.pprof_format import (
    Function,
    Label,
    Line,
    Location,
    Mapping,
    PprofFile,
    ValueType,
)
from rootwalk.graph.exporters.stored_profiles import (
    ProfileKey,
    ProfileRow,
    SampleRow,
    read_dictionary,
    read_profiles,
    read_samples,
)
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import InsufficientDataError

if TYPE_CHECKING:
    from rootwalk.graph.exporters.formats import Choice

__all__ = ["write"]

# Names of the kind that is counted every so often: pprof's and Pyroscope's.
COUNTED: Final = ValueType("samples", "count")
TRACE_ID_LABEL: Final = "trace_id"
SPAN_ID_LABEL: Final = "span_id"
MAX_BIGINT: Final = 2**63 - 1
BUILD_ID_KEYS: Final = (
    semconv.PROCESS_EXECUTABLE_BUILD_ID_GNU,
    "process.executable.build_id.go",
    "process.executable.build_id.htlhash",
    "process.executable.build_id.profiling",
)


def write(connection: Any, choice: Choice, path: Path) -> str:
    """Write the chosen profiles into a file, and return how many samples of how many profiles they were.

    Raises:
        InsufficientDataError: If there is none.
        OSError: As the disk says.
    """
    profiles = read_profiles(connection, choice)
    columns = _Columns(profiles)
    file = PprofFile(columns.types)
    tables: _Tables | None = None
    used: set[ProfileKey] = set()
    for sample in read_samples(connection, choice):
        dictionary_id = sample.key[1]
        if tables is None or tables.id != dictionary_id:
            tables = _Tables(dictionary_id, read_dictionary(connection, dictionary_id), file)
        used.add(sample.key)
        file.add_sample(
            tables.locations(sample.stack_index),
            columns.labels(sample),
            columns.values(sample),
        )
    if not used:
        steps = " of these steps" if choice.steps is not None else ""
        raise InsufficientDataError(
            f"cannot export: saw {_count(len(profiles), 'profile')} and no sample{steps}; needs one",
            hint="`rootwalk sql STORE 'FROM profiles'` lists what is there",
        )
    chosen = [profile for profile in profiles if profile.key in used]
    path.write_bytes(gzip.compress(_render(file, chosen, columns.default_type), mtime=0))
    return f"{_count(file.sample_count, 'sample')} of {_count(len(chosen), 'profile')}"


def _render(file: PprofFile, profiles: Sequence[ProfileRow], default_type: str) -> bytes:
    times = [p.start_unix_ns for p in profiles if p.start_unix_ns is not None]
    ends = [p.start_unix_ns + (p.duration_ns or 0) for p in profiles if p.start_unix_ns is not None]
    start, end = min(times, default=0), max(ends, default=0)
    period_types = {_period_type(profile) for profile in profiles}
    periods = {profile.period or 0 for profile in profiles}
    return file.render(
        start,
        end - start,
        period_types.pop() if len(period_types) == 1 else None,
        periods.pop() if len(periods) == 1 else 0,
        default_type,
    )


def _period_type(profile: ProfileRow) -> ValueType | None:
    if not profile.period or not profile.period_type:
        return None
    return ValueType(profile.period_type, profile.period_unit or "")


class _Columns:
    """The columns of the file, and what of them a sample has."""

    def __init__(self, profiles: Iterable[ProfileRow]) -> None:
        self.types: list[ValueType] = []
        self.default_type = ""
        self._columns: dict[ProfileKey, tuple[int, int | None, int]] = {}
        self._labels: dict[ProfileKey, tuple[Label, ...]] = {}
        self._attributes: dict[str, list[Label]] = {}
        for profile in profiles:
            kind = ValueType(profile.sample_type or "unknown", profile.unit or "")
            own, meant = self._column(kind), None
            period_type = _period_type(profile)
            if kind == COUNTED and period_type is not None:
                meant = self._column(period_type)
                self.default_type = period_type.type
            self._columns[profile.key] = own, meant, profile.period or 0
            self._labels[profile.key] = tuple(_sender_labels(profile))

    def values(self, sample: SampleRow) -> list[int]:
        """Return a value for each column."""
        own, meant, period = self._columns[sample.key]
        value = sum(sample.values) if sample.values else sample.times
        values = [0] * len(self.types)
        values[own] = _within(value)
        if meant is not None:
            values[meant] = _within(value * period)
        return values

    def labels(self, sample: SampleRow) -> tuple[Label, ...]:
        """Return what tells a sample from others, by key; its own attributes before its sender's."""
        found = {label.key: label for label in self._labels[sample.key]}
        if sample.step is not None:
            key = semconv.TRAINING_STEP_NUMBER
            found[key] = Label(key, sample.step)
        if sample.trace_id is not None:
            found[TRACE_ID_LABEL] = Label(TRACE_ID_LABEL, sample.trace_id)
        if sample.span_id is not None:
            found[SPAN_ID_LABEL] = Label(SPAN_ID_LABEL, sample.span_id)
        own = self._attributes.get(sample.attributes)
        if own is None:
            pairs = json.loads(sample.attributes).items()
            own = self._attributes[sample.attributes] = [_label(*pair) for pair in pairs]
        found.update((label.key, label) for label in own)
        return tuple(found[key] for key in sorted(found))

    def _column(self, kind: ValueType) -> int:
        if kind not in self.types:
            self.types.append(kind)
        return self.types.index(kind)


def _sender_labels(profile: ProfileRow) -> Iterable[Label]:
    if profile.job is not None:
        yield Label(semconv.TRAINING_JOB_ID, profile.job)
    if profile.rank is not None:
        yield Label(semconv.TRAINING_RANK, profile.rank)
    if profile.host_name is not None:
        yield Label(semconv.HOST_NAME, profile.host_name)


def _label(key: str, value: object) -> Label:
    if isinstance(value, str):
        return Label(key, value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_BIGINT:
        return Label(key, value)
    return Label(key, json.dumps(value))


def _within(value: int) -> int:
    return max(min(value, MAX_BIGINT), -MAX_BIGINT)


class _Tables:
    """One dictionary, whose numbers become the file's; a number that it lacks means none."""

    def __init__(self, dictionary_id: str, message: Any, file: PprofFile) -> None:
        self.id = dictionary_id
        self._message = message
        self._file = file
        self._stacks: dict[int, tuple[int, ...]] = {}
        self._locations: dict[int, int] = {}
        self._with_functions = {
            location.mapping_index for location in message.location_table if location.lines
        }

    def locations(self, stack_index: int) -> tuple[int, ...]:
        """Return the file's numbers of the locations of a stack, leaf first."""
        found = self._stacks.get(stack_index)
        if found is None:
            stack = _entry(self._message.stack_table, stack_index)
            numbers = [] if stack is None else stack.location_indices
            found = self._stacks[stack_index] = tuple(self._location(n) for n in numbers)
        return found

    def _location(self, index: int) -> int:
        number = self._locations.get(index)
        if number is None:
            number = self._locations[index] = self._add_location(index)
        return number

    def _add_location(self, index: int) -> int:
        location = _entry(self._message.location_table, index)
        if location is None:
            return self._file.location(Location(0, 0, ()))
        lines = tuple(
            Line(self._function(line.function_index), line.line, line.column)
            for line in location.lines
        )
        mapping = self._mapping(location.mapping_index)
        return self._file.location(Location(mapping, location.address, lines))

    def _function(self, index: int) -> int:
        function = _entry(self._message.function_table, index)
        if function is None:
            return 0
        return self._file.function(
            Function(
                self._string(function.name_strindex),
                self._string(function.system_name_strindex),
                self._string(function.filename_strindex),
                function.start_line,
            )
        )

    def _mapping(self, index: int) -> int:
        mapping = _entry(self._message.mapping_table, index)
        if mapping is None:
            return 0
        return self._file.mapping(
            Mapping(
                mapping.memory_start,
                mapping.memory_limit,
                mapping.file_offset,
                self._string(mapping.filename_strindex),
                self._build_id(mapping),
                index in self._with_functions,
            )
        )

    def _build_id(self, mapping: Any) -> str:
        found = {}
        for index in mapping.attribute_indices:
            attribute = _entry(self._message.attribute_table, index)
            if attribute is not None:
                found[self._string(attribute.key_strindex)] = attribute.value
        for key in BUILD_ID_KEYS:
            if key in found:
                value = found[key]
                return str(value.string_value or self._string(value.string_value_strindex))
        return ""

    def _string(self, index: int) -> str:
        return str(_entry(self._message.string_table, index) or "")


def _entry(table: Sequence[Any], index: int) -> Any:
    """Return an entry of a table; None for entry 0 and for one that is not there."""
    return table[index] if 0 < index < len(table) else None


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
