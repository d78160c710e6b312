"""What readers tell, as it arrives at a real OTLP server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rootwalk.ebpf import agent_metrics
from rootwalk.ebpf.agent_metrics import AgentMetrics
from rootwalk.ebpf.availability import Reason, available, unavailable
from rootwalk.ebpf.reader import Measurement
from rootwalk.instrumentation import semconv
from support.otlp_sink import OtlpSink, otlp_sink
from support.workloads import wait_until

STILL, MOVING = "np_cnp_sent", "out_of_sequence"


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    with otlp_sink() as opened:
        yield opened


def events(numbers: dict[str, int]) -> list[Measurement]:
    return [
        Measurement(
            semconv.METRIC_TRAINING_RDMA_EVENTS,
            number,
            {semconv.HW_ID: "mlx5_0:1", semconv.TRAINING_RDMA_EVENT: name},
        )
        for name, number in numbers.items()
    ]


def told(sink: OtlpSink, metric: str, key: str) -> list[tuple[str, float]]:
    """Return the points of a metric in the order in which they came: the value of an attribute, and the number."""
    found = []
    for request in list(sink.metrics):
        for resource in request.resource_metrics:
            for one in (one for scope in resource.scope_metrics for one in scope.metrics):
                if one.name == metric:
                    data = one.sum if one.HasField("sum") else one.gauge
                    for point in data.data_points:
                        texts = {entry.key: entry.value.string_value for entry in point.attributes}
                        found.append((texts[key], point.as_int or point.as_double))
    return found


def test_what_stands_still_is_sent_once_and_what_moves_each_time(
    sink: OtlpSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_metrics, "INTERVAL_S", 0.05)
    metrics = AgentMetrics(sink.endpoint, {}, [])

    def numbers() -> list[tuple[str, float]]:
        return told(sink, semconv.METRIC_TRAINING_RDMA_EVENTS, semconv.TRAINING_RDMA_EVENT)

    for number in (2, 3, 5):
        metrics.set_measurements(events({STILL: 7, MOVING: number}))
        wait_until(lambda number=number: (MOVING, number) in numbers())  # type: ignore[misc]
    metrics.close()
    assert numbers() == [(STILL, 7), (MOVING, 2), (MOVING, 3), (MOVING, 5)]


def test_sensor_that_is_lost_on_the_way_is_told_as_missing(
    sink: OtlpSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_metrics, "INTERVAL_S", 0.05)
    metrics = AgentMetrics(sink.endpoint, {}, [available("disks", 0, "proc")])

    def states() -> list[str]:
        key = semconv.ROOTWALK_SENSOR_STATUS
        return [status for status, _ in told(sink, semconv.METRIC_ROOTWALK_SENSOR_STATE, key)]

    wait_until(lambda: bool(states()))
    metrics.set_sensors([unavailable("disks", Reason.READER_FAILED, 0)])
    wait_until(lambda: states()[-1] == "unavailable")
    metrics.close()
    assert sorted(set(states())) == ["available", "unavailable"]
    assert states() == sorted(states())
