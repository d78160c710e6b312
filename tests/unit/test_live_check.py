"""The check of telemetry against the registry finds what it has to, and nothing in what is right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rootwalk.instrumentation import semconv
from support.live_check import SENT, check_request

ROOT = Path(__file__).resolve().parents[2]
PRODUCERS = (
    "ebpf",
    "instrumentation",
    "graph/commands",
    "graph/live",
    "graph/importers",
    "graph/exporters",
)
STEP = {"training.step.number": 7, "training.step.outcome": "complete"}
BACKEND = {
    "rootwalk.sensor.name": "sched",
    "rootwalk.sensor.status": "available",
    "rootwalk.sensor.tier": 2,
}


def put(holder: Any, attributes: dict[str, Any]) -> None:
    for key, value in attributes.items():
        entry = holder.attributes.add(key=key)
        kind = {str: "string_value", bool: "bool_value", int: "int_value"}.get(type(value))
        setattr(entry.value, kind or "double_value", value)


def spans(
    name: str,
    attributes: dict[str, Any],
    scope: str = "rootwalk.instrumentation",
    resource: dict[str, Any] | None = None,
) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    put(group.resource, resource or {})
    scoped = group.scope_spans.add()
    scoped.scope.name = scope
    put(scoped.spans.add(name=name), attributes)
    return request


def gauge(name: str, unit: str, attributes: dict[str, Any]) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    scoped = request.resource_metrics.add().scope_metrics.add()
    scoped.scope.name = "rootwalk.ebpf"
    put(scoped.metrics.add(name=name, unit=unit).gauge.data_points.add(), attributes)
    return request


def test_what_is_right_is_seen_and_not_told() -> None:
    assert check_request(spans("training.rank_step", STEP)) == []
    assert check_request(gauge("rootwalk.sensor.state", "1", BACKEND)) == []
    assert {"span training.rank_step", "metric rootwalk.sensor.state"} <= SENT


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (spans("training.steps", STEP), "span training.steps: not in the registry"),
        (
            spans("training.rank_step", STEP | {"my.key": 1}),
            "attribute my.key is not in the registry",
        ),
        (spans("training.rank_step", STEP | {"thread.id": 1}), "thread.id is not among its own"),
        (
            spans("training.rank_step", STEP | {"training.step.number": "7"}),
            "is string_value; needs int",
        ),
        (
            spans("training.rank_step", {"training.step.number": 7}),
            "lacks training.step.outcome, which is required",
        ),
        (
            spans("training.rank_step", STEP, resource={"training.rank": "3"}),
            "a resource: attribute training.rank is string_value",
        ),
        (spans("collective.sum", {}), "span collective.sum: lacks collective.communicator.id"),
        (gauge("rootwalk.sensor.state", "s", BACKEND), "unit 's'; needs '1'"),
        (gauge("rootwalk.dropped", "{record}", {}), "gauge; needs counter"),
    ],
)
def test_what_is_wrong_is_told(request_: Any, told: str) -> None:
    assert any(told in line for line in check_request(request_)), check_request(request_)


def test_other_producers_may_send_what_they_like() -> None:
    assert check_request(spans("GET /", {"http.route": "/"}, scope="my.library")) == []


def test_every_signal_of_the_registry_has_a_producer() -> None:
    files = [file for folder in PRODUCERS for file in (ROOT / folder).rglob("*.py")]
    source = "\n".join(file.read_text() for file in files if file.name != "semconv.py")
    used = set(re.findall(r'\bsemconv\.([A-Z0-9_]+)|"([a-z_.]+)"', source))
    names = {one for pair in used for one in pair if one}
    lost = {
        name
        for prefix, signals in (("METRIC_", semconv.METRICS), ("EVENT_", semconv.EVENTS))
        for name in signals
        if not {name, prefix + name.replace(".", "_").upper()} & names
    }
    assert not lost
