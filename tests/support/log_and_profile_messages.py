"""Builders for logs and profiles requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.profiles.v1development.profiles_pb2 import (
    Function,
    KeyValueAndUnit,
    Line,
    Link,
    Location,
    Profile,
    ProfilesDictionary,
    Sample,
    Stack,
    ValueType,
)
from opentelemetry.proto.profiles.v1development.profiles_pb2 import (
    Mapping as MappingMessage,
)

from support.otlp_messages import RANK_RESOURCE, any_value, key_values

# Every string of the dictionary below, by name.
STRINGS = [
    "",
    "main",
    "step",
    "memcpy",
    "samples",
    "count",
    "cpu",
    "nanoseconds",
    "thread.name",
    "loader",
]
STRINGS += ["/usr/lib/libx.so", "training.job.id", "j1"]


def log_record(**fields: Any) -> Any:
    """Return a log record; attributes and body may be plain values."""
    attributes, body = fields.pop("attributes", {}), fields.pop("body", None)
    if body is not None:
        fields["body"] = any_value(body)
    return LogRecord(**fields, attributes=key_values(attributes))


def log_request(records: Sequence[Any], resource: Mapping[str, Any] | None = None) -> bytes:
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.attributes.extend(key_values(RANK_RESOURCE if resource is None else resource))
    scope_logs = group.scope_logs.add()
    scope_logs.scope.name = "test"
    scope_logs.log_records.extend(records)
    return bytes(request.SerializeToString())


def dictionary() -> Any:
    """Return main > step, with memcpy inlined into step's second place, and one place without a function.

    Stack 1 is step in main; stack 2 memcpy inlined into step in main; stack 3 an address of libx.so in main.
    """
    number = STRINGS.index
    return ProfilesDictionary(
        string_table=STRINGS,
        mapping_table=[
            MappingMessage(),
            MappingMessage(filename_strindex=number("/usr/lib/libx.so")),
        ],
        function_table=[
            Function(),
            *(Function(name_strindex=number(name)) for name in ("main", "step", "memcpy")),
        ],
        location_table=[
            Location(),
            Location(lines=[Line(function_index=1, line=3)]),
            Location(lines=[Line(function_index=2, line=9)]),
            Location(lines=[Line(function_index=3, line=1), Line(function_index=2, line=8)]),
            Location(mapping_index=1, address=0x2F),
        ],
        stack_table=[
            Stack(),
            Stack(location_indices=[2, 1]),
            Stack(location_indices=[3, 1]),
            Stack(location_indices=[4, 1]),
        ],
        link_table=[Link(), Link(trace_id=bytes(15) + b"\x07", span_id=bytes(7) + b"\x05")],
        attribute_table=[
            KeyValueAndUnit(),
            KeyValueAndUnit(key_strindex=number("thread.name"), value=any_value("loader")),
        ],
    )


def profile(samples: Sequence[Any], **fields: Any) -> Any:
    """Return a profile of CPU samples that began at 1000 ns and lasted 50."""
    number = STRINGS.index
    defaults: dict[str, Any] = {
        "sample_type": ValueType(type_strindex=number("samples"), unit_strindex=number("count")),
        "period_type": ValueType(type_strindex=number("cpu"), unit_strindex=number("nanoseconds")),
        "period": 10,
        "time_unix_nano": 1000,
        "duration_nano": 50,
    }
    return Profile(**(defaults | fields), samples=samples)


def sample(stack: int, **fields: Any) -> Any:
    return Sample(stack_index=stack, **fields)


def profile_request(
    profiles: Sequence[Any], attributes: Sequence[Any] | None = None, tables: Any = None
) -> bytes:
    """Return a request whose resource has `attributes`, KeyValue messages; by default those of a rank."""
    request = ExportProfilesServiceRequest(dictionary=tables or dictionary())
    group = request.resource_profiles.add()
    group.resource.attributes.extend(
        key_values(RANK_RESOURCE) if attributes is None else attributes
    )
    scope_profiles = group.scope_profiles.add()
    scope_profiles.scope.name = "test"
    scope_profiles.profiles.extend(profiles)
    return bytes(request.SerializeToString())
