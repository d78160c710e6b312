"""pprof files read by other means than ours: protobuf's own parser, with the message built here from profile.proto.

Also the older binary form of CPU profiles, in which many public samples are.

Source: google/pprof, proto/profile.proto; gperftools, docs/cpuprofile-fileformat.html.
"""

from __future__ import annotations

import functools
import gzip
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

# Message -> field: number and type; `*` repeated, `i` int64, `u` uint64, `b` bool, `s` string, `y` bytes, else a
# message.
FIELDS: dict[str, dict[str, str]] = {
    "Profile": {
        "sample_type": "1 *ValueType",
        "sample": "2 *Sample",
        "mapping": "3 *Mapping",
        "location": "4 *Location",
        "function": "5 *Function",
        "string_table": "6 *s",
        "drop_frames": "7 i",
        "keep_frames": "8 i",
        "time_nanos": "9 i",
        "duration_nanos": "10 i",
        "period_type": "11 ValueType",
        "period": "12 i",
        "comment": "13 *i",
        "default_sample_type": "14 i",
    },
    "ValueType": {"type": "1 i", "unit": "2 i"},
    "Sample": {"location_id": "1 *u", "value": "2 *i", "label": "3 *Label"},
    "Label": {"key": "1 i", "str": "2 i", "num": "3 i", "num_unit": "4 i"},
    "Mapping": {
        "id": "1 u",
        "memory_start": "2 u",
        "memory_limit": "3 u",
        "file_offset": "4 u",
        "filename": "5 i",
        "build_id": "6 i",
        "has_functions": "7 b",
        "has_filenames": "8 b",
        "has_line_numbers": "9 b",
        "has_inline_frames": "10 b",
    },
    "Location": {"id": "1 u", "mapping_id": "2 u", "address": "3 u", "line": "4 *Line"},
    "Line": {"function_id": "1 u", "line": "2 i", "column": "3 i"},
    "Function": {
        "id": "1 u",
        "name": "2 i",
        "system_name": "3 i",
        "filename": "4 i",
        "start_line": "5 i",
    },
    # What Pyroscope's clients push (grafana/pyroscope, api/push/v1/push.proto).
    "PushRequest": {"series": "1 *RawProfileSeries"},
    "RawProfileSeries": {"labels": "1 *LabelPair", "samples": "2 *RawSample"},
    "LabelPair": {"name": "1 s", "value": "2 s"},
    "RawSample": {"raw_profile": "1 y", "ID": "2 s"},
}
SCALARS = {"i": 3, "u": 4, "b": 8, "s": 9, "y": 12}  # FieldDescriptorProto.Type


@dataclass(frozen=True, slots=True)
class Place:
    """One location of a stack.

    (start, limit, offset, name) of its file; its address; (function, file, line) of each of its lines.
    """

    mapping: tuple[int, int, int, str] | None
    address: int
    lines: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True)
class StackCounts:
    """A profile by what it says: values of stacks and labels, leaf first."""

    types: tuple[tuple[str, str], ...]
    period: tuple[str, str, int] | None
    samples: Counter[tuple[tuple[Place, ...], tuple[tuple[str, Any], ...], int]]


@functools.cache
def pprof_message(wanted: str = "Profile") -> Any:
    """Return the class of pprof's message, or of another one above."""
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="t", syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, text in fields.items():
            number, kind = text.split()
            label = 3 if kind.startswith("*") else 1
            one = message.field.add(name=field, number=int(number), label=label)
            kind = kind.removeprefix("*")
            if kind in SCALARS:
                one.type = SCALARS[kind]
            else:
                one.type, one.type_name = 11, f".t.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{wanted}"))


def read_pprof(path: Path) -> Any:
    """Return a pprof file, gzip-compressed as all are, as a message."""
    message = pprof_message()()
    message.ParseFromString(gzip.decompress(path.read_bytes()))
    return message


def count_stacks(message: Any) -> StackCounts:
    """Return what a profile says, whatever numbers it uses; each value of a sample is counted by its column."""
    text = message.string_table
    mappings = {
        m.id: (m.memory_start, m.memory_limit, m.file_offset, text[m.filename])
        for m in message.mapping
    }
    functions = {f.id: (text[f.name], text[f.filename]) for f in message.function}
    places = {
        one.id: Place(
            mappings.get(one.mapping_id),
            one.address,
            tuple((*functions[line.function_id], line.line) for line in one.line),
        )
        for one in message.location
    }
    samples: Counter[tuple[tuple[Place, ...], tuple[tuple[str, Any], ...], int]] = Counter()
    for sample in message.sample:
        stack = tuple(places[number] for number in sample.location_id)
        labels = tuple(
            sorted((text[one.key], text[one.str] if one.str else one.num) for one in sample.label)
        )
        for column, value in enumerate(sample.value):
            samples[stack, labels, column] += value
    period_type = message.period_type
    return StackCounts(
        tuple((text[kind.type], text[kind.unit]) for kind in message.sample_type),
        (text[period_type.type], text[period_type.unit], message.period)
        if message.HasField("period_type")
        else None,
        samples,
    )


def read_legacy_cpu(path: Path) -> Any:
    """Return a CPU profile of the older binary form as pprof's message: values are samples and nanoseconds."""
    content = path.read_bytes()
    words = struct.unpack(f"<{len(content) // 8}Q", content[: len(content) // 8 * 8])
    assert words[:3] == (0, 3, 0), "a header of 3 words after the first 2, version 0"
    period_ns = words[3] * 1000
    position = 5
    stacks: Counter[tuple[int, ...]] = Counter()
    while words[position : position + 3] != (0, 1, 0):
        count, depth = words[position : position + 2]
        stacks[words[position + 2 : position + 2 + depth]] += count
        position += 2 + depth
    maps = content[(position + 3) * 8 :].decode(errors="replace")
    message = pprof_message()(string_table=["", "samples", "count", "cpu", "nanoseconds"])
    message.sample_type.add(type=1, unit=2)
    message.sample_type.add(type=3, unit=4)
    message.period_type.type, message.period_type.unit, message.period = 3, 4, period_ns
    for begin, end, offset, name in _list_mapped(maps):
        message.string_table.append(name)
        message.mapping.add(
            id=len(message.mapping) + 1,
            memory_start=begin,
            memory_limit=end,
            file_offset=offset,
            filename=len(message.string_table) - 1,
        )
    numbers: dict[int, int] = {}
    for stack, count in stacks.items():
        for address in stack:
            if address not in numbers:
                numbers[address] = len(numbers) + 1
                owner = next(
                    (m.id for m in message.mapping if m.memory_start <= address < m.memory_limit), 0
                )
                message.location.add(id=numbers[address], address=address, mapping_id=owner)
        message.sample.add(
            location_id=[numbers[address] for address in stack], value=[count, count * period_ns]
        )
    return message


def _list_mapped(maps: str) -> Iterator[tuple[int, int, int, str]]:
    """Yield begin, end, offset and file of the executable lines of a /proc/PID/maps."""
    for line in maps.splitlines():
        found = re.match(r"\s*([0-9a-f]+)-([0-9a-f]+) ..x. ([0-9a-f]+) \S+ \d+\s+(\S.*)", line)
        if found:
            yield int(found[1], 16), int(found[2], 16), int(found[3], 16), found[4]
