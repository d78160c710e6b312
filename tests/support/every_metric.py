"""Every metric of the registry once over, as OTLP: stand-ins for devices and events that no machine here has.

value    0, 30, 60 ... at points 5 s apart: a rate of each counter is 6 a second
series   one for every member of each attribute with a list of values, the others at their first
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.log_events import key_values

__all__ = ["build_every_metric"]

REGISTRY = Path(__file__).resolve().parents[2] / "instrumentation" / "registry" / "attributes.yaml"
NS = 1_000_000_000
STEP = 30
INTERVAL_S = 5
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
# Of the core conventions' lists, the members that somebody asks for.
CORE_MEMBERS = {
    "cpu.mode": ("user", "system", "steal", "iowait"),
    "network.io.direction": ("receive", "transmit"),
    "disk.io.direction": ("read", "write"),
    "system.paging.direction": ("in", "out"),
    "error.type": ("corrected", "uncorrected"),
}
EXAMPLES: dict[str, str | int | float | bool] = {
    "string": "example",
    "int": 1,
    "double": 0.5,
    "boolean": True,
}


def build_every_metric(
    job: str, end_unix_ns: int, points: int = 24
) -> Iterator[ExportMetricsServiceRequest]:
    """Yield a request for each of some points in time, the last at `end_unix_ns`."""
    begin_ns = end_unix_ns - (points - 1) * INTERVAL_S * NS
    for number in range(points):
        request = ExportMetricsServiceRequest()
        group = request.resource_metrics.add(schema_url=semconv.SCHEMA_URL)
        who = {semconv.SERVICE_NAME: "every-metric", semconv.TRAINING_JOB_ID: job}
        group.resource.attributes.extend(
            key_values(who | {semconv.TRAINING_JOB_ATTEMPT: 0, semconv.HOST_NAME: "host-0"})
        )
        group.resource.attributes.extend(key_values({semconv.TRAINING_RANK: 0}))
        scope = group.scope_metrics.add()
        scope.scope.name = "rootwalk.ebpf"
        times = {
            "start_time_unix_nano": begin_ns,
            "time_unix_nano": begin_ns + number * INTERVAL_S * NS,
        }
        for name, definition in semconv.METRICS.items():
            metric = scope.metrics.add(name=name, unit=definition.unit)
            for attributes in _series(name):
                _add_point(metric, definition.instrument, number * STEP, times, attributes)
        yield request


def _add_point(
    metric: Any, instrument: str, value: int, times: dict[str, int], attributes: Mapping[str, Any]
) -> None:
    listed = key_values(attributes)
    if instrument == "histogram":
        metric.histogram.aggregation_temporality = CUMULATIVE
        counts, bounds = [0, value, 0], [0.1, 1.0]
        metric.histogram.data_points.add(
            **times,
            attributes=listed,
            count=value,
            sum=value * 0.5,
            bucket_counts=counts,
            explicit_bounds=bounds,
        )
    elif instrument == "gauge":
        metric.gauge.data_points.add(**times, attributes=listed, as_double=1.0)
    else:
        metric.sum.aggregation_temporality = CUMULATIVE
        metric.sum.is_monotonic = instrument == "counter"
        metric.sum.data_points.add(**times, attributes=listed, as_double=float(value))


def _series(name: str) -> list[dict[str, Any]]:
    """Return the attributes of each series of a metric; who it is of is on the Resource."""
    keys = sorted(semconv.METRICS[name].attributes - {semconv.HOST_NAME, semconv.TRAINING_RANK})
    first = {key: _values(key)[0] for key in keys}
    others = [first | {key: value} for key in keys for value in _values(key)[1:]]
    return [first, *others]


def _values(key: str) -> tuple[Any, ...]:
    return _members().get(key) or (EXAMPLES[semconv.ATTRIBUTES[key]],)


@functools.cache
def _members() -> dict[str, tuple[str, ...]]:
    listed = yaml.safe_load(REGISTRY.read_text(encoding="utf-8"))["attributes"]
    return CORE_MEMBERS | {
        one["key"]: tuple(member["value"] for member in one["type"]["members"])
        for one in listed
        if isinstance(one["type"], dict)
    }
