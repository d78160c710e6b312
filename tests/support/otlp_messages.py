"""Builders of OTLP requests, small enough to check by eye."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

RANK_RESOURCE: dict[str, Any] = {
    "service.name": "rootwalk",
    "training.job.id": "j1",
    "training.job.attempt": 0,
    "training.rank": 1,
    "training.local_rank": 1,
    "training.world_size": 2,
    "host.id": "h1",
    "host.name": "alpha",
    "process.pid": 4411,
}


def any_value(value: Any) -> Any:
    """Return a Python value as an AnyValue; a dict becomes a key-value list."""
    match value:
        case None:
            return AnyValue()
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case dict():
            return AnyValue(kvlist_value=KeyValueList(values=key_values(value)))
        case _:
            return AnyValue(array_value=ArrayValue(values=[any_value(item) for item in value]))


def key_values(attributes: Mapping[str, Any]) -> list[Any]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def span(number: int, name: str = "s", /, **fields: Any) -> Any:
    """Return a span of trace 00…01 whose span id is `number`; it lasts 5 ns from 1000 + number."""
    attributes = fields.pop("attributes", {})
    defaults: dict[str, Any] = {
        "trace_id": (1).to_bytes(16, "big"),
        "span_id": number.to_bytes(8, "big"),
        "name": name,
        "kind": Span.SPAN_KIND_INTERNAL,
        "start_time_unix_nano": 1000 + number,
        "end_time_unix_nano": 1005 + number,
    }
    return Span(**(defaults | fields), attributes=key_values(attributes))


def metric(name: str, /, **fields: Any) -> Any:
    """Return a metric; messages inside may be given as dicts of their fields."""
    return Metric(name=name, **fields)


def trace_request(
    spans: Sequence[Any], resource: Mapping[str, Any] | None = None, scope: str = "test"
) -> bytes:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.extend(key_values(RANK_RESOURCE if resource is None else resource))
    scope_spans = group.scope_spans.add()
    scope_spans.scope.name = scope
    scope_spans.spans.extend(spans)
    return bytes(request.SerializeToString())


def metric_request(metrics: Sequence[Any], resource: Mapping[str, Any] | None = None) -> bytes:
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    group.resource.attributes.extend(key_values(RANK_RESOURCE if resource is None else resource))
    scope_metrics = group.scope_metrics.add()
    scope_metrics.scope.name = "test"
    scope_metrics.metrics.extend(metrics)
    return bytes(request.SerializeToString())


def log_request(texts: Sequence[str], resource: Mapping[str, Any] | None = None) -> bytes:
    """Return log records with these bodies."""
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.attributes.extend(key_values(RANK_RESOURCE if resource is None else resource))
    scope_logs = group.scope_logs.add()
    scope_logs.scope.name = "test"
    for number, text in enumerate(texts):
        scope_logs.log_records.add(time_unix_nano=1000 + number, body=any_value(text))
    return bytes(request.SerializeToString())


def profile_request(profiles: Sequence[Sequence[Mapping[str, Any]]]) -> bytes:
    """Return profiles of samples given by their fields; the dictionary has an empty stack and one of one frame."""
    request = ExportProfilesServiceRequest()
    dictionary = request.dictionary
    dictionary.string_table.extend(["", "main"])
    dictionary.function_table.add()
    dictionary.function_table.add(name_strindex=1)
    dictionary.location_table.add()
    dictionary.location_table.add(lines=[{"function_index": 1}])
    dictionary.stack_table.add()
    dictionary.stack_table.add(location_indices=[1])
    group = request.resource_profiles.add()
    group.resource.attributes.extend(key_values(RANK_RESOURCE))
    scope_profiles = group.scope_profiles.add()
    scope_profiles.scope.name = "test"
    for samples in profiles:
        scope_profiles.profiles.add(samples=list(samples), time_unix_nano=1000)
    return bytes(request.SerializeToString())
