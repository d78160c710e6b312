"""One request of profiles, and what breaks each rule in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.profiles.v1development.profiles_pb2 import KeyValueAndUnit, Link

from rootwalk.instrumentation.profiles import (
    Binary,
    Frame,
    FrameKind,
    Profile,
    Sample,
    ValueKind,
    build_request,
)

LINK = (bytes(15) + b"\x07", bytes(7) + b"\x05")
LIBX = Binary("libx.so", "c0ffee")
MAIN = Frame(FrameKind.CPYTHON, "main", "train.py", line=3, first_line=1)
STEP = Frame(FrameKind.CPYTHON, "step", "train.py", line=9, first_line=8)
GEMM = Frame(FrameKind.NATIVE, "gemm", binary=LIBX, address=0x20)
BARE = Frame(FrameKind.NATIVE, None, binary=LIBX, address=0x2F)
READ = Frame(FrameKind.KERNEL, "vfs_read")
SAMPLES = (
    Sample((GEMM, STEP, MAIN), 3, {"training.phase": "forward"}, LINK),
    Sample((STEP, MAIN), 4, {"training.phase": "forward"}, LINK),
    Sample((READ, BARE, STEP, MAIN), 5),
)
CPU = ValueKind("cpu", "nanoseconds")


def cpu_profile(*samples: Sample, **changes: Any) -> Profile:
    fields: dict[str, Any] = {
        "resource": {"service.name": "rootwalk", "training.rank": 1},
        "start_unix_ns": 1000,
        "duration_ns": 50,
        "sample_type": ValueKind("samples", "count"),
        "samples": samples or SAMPLES,
        "period_type": CPU,
        "period": 10,
    }
    return Profile(**(fields | changes))


def parse(body: bytes) -> Any:
    request = ExportProfilesServiceRequest()
    request.ParseFromString(body)
    return request


def build(*profiles: Profile) -> Any:
    return parse(build_request(profiles or [cpu_profile()], "rootwalk.profiles", "1"))


def first(request: Any) -> Any:
    return request.resource_profiles[0].scope_profiles[0].profiles[0]


def _repeat(request: Any, table: str) -> None:
    entries = getattr(request.dictionary, table)
    entries.append(entries[-1])


def _orphan(request: Any) -> None:
    request.dictionary.string_table.append("nobody's")


def _mapping(request: Any, begin: int, end: int) -> None:
    mapping = request.dictionary.mapping_table[1]
    mapping.memory_start, mapping.memory_limit = begin, end


def _times(request: Any, *times: int) -> None:
    profile = first(request)
    profile.period = 0
    profile.samples[0].timestamps_unix_nano.extend(times)


def _two_values(request: Any) -> None:
    first(request).period = 0
    first(request).samples[0].values.append(1)


def _same_key(request: Any) -> None:
    phase = first(request).samples[0].attribute_indices[0]
    again = KeyValueAndUnit()
    again.CopyFrom(request.dictionary.attribute_table[phase])
    again.value.string_value = "backward"
    request.dictionary.attribute_table.append(again)
    first(request).samples[0].attribute_indices.append(phase + 1)
    first(request).samples[0].attribute_indices[1] = len(request.dictionary.attribute_table) - 1


def _key_by_number(request: Any, *, keeps_name: bool) -> None:
    pair = request.resource_profiles[0].resource.attributes[0]
    pair.key_strindex = 1
    if not keeps_name:
        pair.key = ""


def _clear_first(request: Any, field: str) -> None:
    first(request).samples[0].ClearField(field)


BREAKERS: list[tuple[str, Callable[[Any], object]]] = [
    ("resources", lambda r: r.ClearField("resource_profiles")),
    ("scopes", lambda r: r.resource_profiles[0].ClearField("scope_profiles")),
    ("profiles", lambda r: r.resource_profiles[0].scope_profiles[0].ClearField("profiles")),
    *(
        ("none first", lambda r, table=table: r.dictionary.ClearField(table))
        for table in (
            *("mapping_table", "location_table", "function_table", "link_table"),
            *("string_table", "attribute_table", "stack_table"),
        )
    ),
    ("none first", lambda r: r.dictionary.string_table.__setitem__(0, "x")),
    ("none first", lambda r: r.dictionary.link_table[0].CopyFrom(Link(trace_id=bytes(16)))),
    ("none first", lambda r: setattr(r.dictionary.location_table[0], "address", 1)),
    ("indices", lambda r: setattr(first(r).samples[0], "stack_index", 99)),
    ("indices", lambda r: setattr(first(r).samples[0], "stack_index", -1)),
    ("indices", lambda r: setattr(first(r).samples[0], "link_index", 99)),
    ("indices", lambda r: first(r).samples[0].attribute_indices.append(99)),
    ("indices", lambda r: first(r).attribute_indices.append(99)),
    ("indices", lambda r: setattr(first(r).sample_type, "type_strindex", 99)),
    ("indices", lambda r: setattr(first(r).period_type, "unit_strindex", 99)),
    ("indices", lambda r: r.dictionary.stack_table[1].location_indices.append(99)),
    ("indices", lambda r: setattr(r.dictionary.location_table[1], "mapping_index", 99)),
    ("indices", lambda r: r.dictionary.location_table[1].lines.add(function_index=99)),
    ("indices", lambda r: r.dictionary.location_table[1].attribute_indices.append(99)),
    ("indices", lambda r: setattr(r.dictionary.function_table[1], "name_strindex", 99)),
    ("indices", lambda r: setattr(r.dictionary.function_table[1], "system_name_strindex", 99)),
    ("indices", lambda r: setattr(r.dictionary.function_table[1], "filename_strindex", 99)),
    ("indices", lambda r: setattr(r.dictionary.mapping_table[1], "filename_strindex", 99)),
    ("indices", lambda r: r.dictionary.mapping_table[1].attribute_indices.append(99)),
    ("indices", lambda r: setattr(r.dictionary.attribute_table[1], "key_strindex", 99)),
    ("indices", lambda r: setattr(r.dictionary.attribute_table[1], "unit_strindex", 99)),
    (
        "indices",
        lambda r: setattr(r.dictionary.attribute_table[1].value, "string_value_strindex", 99),
    ),
    (
        "indices",
        lambda r: setattr(r.resource_profiles[0].resource.attributes[0], "key_strindex", 99),
    ),
    ("null in a list", lambda r: first(r).samples[0].attribute_indices.append(0)),
    ("null in a list", lambda r: r.dictionary.stack_table[1].location_indices.append(0)),
    ("unique keys", _same_key),
    (
        "unique keys",
        lambda r: r.resource_profiles[0].resource.attributes.add(key="service.name"),
    ),
    *(
        ("unique entries", lambda r, table=table: _repeat(r, table))
        for table in (
            *("mapping_table", "location_table", "function_table", "link_table"),
            *("string_table", "attribute_table", "stack_table"),
        )
    ),
    ("orphans", _orphan),
    ("mapping ranges", lambda r: _mapping(r, 0x100, 0x100)),
    ("addresses", lambda r: _mapping(r, 0x100, 0x200)),
    ("lines", lambda r: setattr(r.dictionary.location_table[1].lines[0], "line", -1)),
    ("lines", lambda r: setattr(r.dictionary.location_table[1].lines[0], "column", -1)),
    ("lines", lambda r: setattr(r.dictionary.function_table[1], "start_line", -1)),
    ("link ids", lambda r: setattr(r.dictionary.link_table[1], "trace_id", b"\x07")),
    ("link ids", lambda r: setattr(r.dictionary.link_table[1], "span_id", bytes(8))),
    ("something measured", lambda r: _clear_first(r, "values")),
    ("as many times", lambda r: _times(r, 1001, 1002)),
    ("one value without times", _two_values),
    ("one shape", lambda r: _times(r, 1001)),
    ("times inside", lambda r: _times(r, 999)),
    ("times inside", lambda r: _times(r, 1050)),
    ("joined samples", lambda r: first(r).samples.append(first(r).samples[0])),
    ("profile id", lambda r: setattr(first(r), "profile_id", bytes(16))),
    ("profile id", lambda r: setattr(first(r), "profile_id", b"\x01")),
    ("payload", lambda r: setattr(first(r), "original_payload", b"jfr")),
    ("payload", lambda r: setattr(first(r), "original_payload_format", "jfr")),
    ("one form of key", lambda r: _key_by_number(r, keeps_name=True)),
    ("resource keys", lambda r: _key_by_number(r, keeps_name=False)),
    ("one value a period", lambda r: first(r).samples[0].values.append(1)),
    ("sample type", lambda r: first(r).ClearField("sample_type")),
    ("time", lambda r: first(r).ClearField("time_unix_nano")),
]


def list_numbers(message: Any) -> list[tuple[Any, Any]]:
    """Every field that is the number of an entry, with a message that has it."""
    found = []
    for descriptor in message.DESCRIPTOR.fields:
        if descriptor.name.endswith(("_index", "_indices", "strindex")):
            found.append((message, descriptor.name))
        elif descriptor.message_type is not None:
            inner = getattr(message, descriptor.name)
            for one in inner if isinstance(inner, Sequence) else [inner]:
                found += list_numbers(one)
    return found
