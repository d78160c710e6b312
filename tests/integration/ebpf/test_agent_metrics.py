"""What the agent knows as metrics, as it arrives at a real OTLP server."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from rootwalk.ebpf import agent_metrics
from rootwalk.ebpf.agent_metrics import AgentMetrics, HostState, RankState
from rootwalk.ebpf.availability import Reason, available, unavailable
from rootwalk.ebpf.reader import Measurement
from rootwalk.ebpf.thread_totals import RoleTotals
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.identity import read_identity
from support.otlp_sink import OtlpSink, otlp_sink
from support.workloads import wait_until

STILL, MOVING = "np_cnp_sent", "out_of_sequence"
RANK = read_identity({"ROOTWALK_JOB": "job", "RANK": "3", "WORLD_SIZE": "8"})
LEVEL = semconv.METRIC_ROOTWALK_AGENT_LEVEL


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    with otlp_sink() as opened:
        yield opened


def events(numbers: dict[str, int], slot: int | None = None) -> list[Measurement]:
    return [
        Measurement(
            semconv.METRIC_TRAINING_RDMA_EVENTS,
            number,
            {semconv.HW_ID: "mlx5_0:1", semconv.TRAINING_RDMA_EVENT: name},
            slot,
        )
        for name, number in numbers.items()
    ]


def metrics_of(sink: OtlpSink) -> list[Metric]:
    """Return all metrics in the order in which they came."""
    return [
        one
        for request in list(sink.metrics)
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for one in scope.metrics
    ]


def told(sink: OtlpSink, metric: str, key: str) -> list[tuple[str, float]]:
    """Return the points of a metric in the order in which they came: the value of an attribute, and the number."""
    found = []
    for one in metrics_of(sink):
        if one.name == metric:
            data = one.sum if one.HasField("sum") else one.gauge
            for point in data.data_points:
                texts = {entry.key: entry.value.string_value for entry in point.attributes}
                found.append((texts[key], point.as_int or point.as_double))
    return found


def numbers(sink: OtlpSink) -> list[tuple[str, float]]:
    return told(sink, semconv.METRIC_TRAINING_RDMA_EVENTS, semconv.TRAINING_RDMA_EVENT)


def levels_by_rank(sink: OtlpSink) -> list[list[tuple[int, int]]]:
    """Return for each request the ranks in it, each with its level."""
    found = []
    for request in list(sink.metrics):
        pairs = []
        for resource in request.resource_metrics:
            rank = {entry.key: entry.value.int_value for entry in resource.resource.attributes}
            for one in (one for scope in resource.scope_metrics for one in scope.metrics):
                if one.name == LEVEL:
                    point = one.gauge.data_points[0]
                    pairs.append((rank[semconv.TRAINING_RANK], point.as_int))
        found.append(pairs)
    return found


def send(metrics: AgentMetrics) -> None:
    """Send one request and wait for what becomes of it."""
    metrics.send()
    wait_until(lambda: not metrics._export.is_busy)


def state(level: int) -> RankState:
    return RankState(None, RoleTotals(), None, level)


def test_what_stands_still_is_sent_once_and_what_moves_each_time(sink: OtlpSink) -> None:
    metrics = AgentMetrics(sink.endpoint, {}, [])
    for number in (2, 3, 5):
        metrics.set_measurements(events({STILL: 7, MOVING: number}))
        send(metrics)
    metrics.close()
    assert numbers(sink) == [(STILL, 7), (MOVING, 2), (MOVING, 3), (MOVING, 5)]


def test_what_did_not_arrive_is_sent_again(sink: OtlpSink) -> None:
    metrics = AgentMetrics(sink.endpoint, {}, [])
    metrics.set_measurements(events({STILL: 7}))
    sink.status = 400
    send(metrics)
    sink.status = 200
    send(metrics)
    send(metrics)
    metrics.close()
    assert numbers(sink) == [(STILL, 7)]


def test_sensor_that_is_lost_on_the_way_is_told_as_missing(sink: OtlpSink) -> None:
    metrics = AgentMetrics(sink.endpoint, {}, [available("disks", 0, "proc")])
    send(metrics)
    metrics.set_sensors([unavailable("disks", Reason.READER_FAILED, 0)])
    metrics.close()
    key = semconv.ROOTWALK_SENSOR_STATUS
    states = [status for status, _ in told(sink, semconv.METRIC_ROOTWALK_SENSOR_STATE, key)]
    assert states == ["available", "unavailable"]


def test_all_ranks_are_one_request_and_one_that_ends_sends_its_last_values(sink: OtlpSink) -> None:
    metrics = AgentMetrics(sink.endpoint, {}, [])
    metrics.set_rank(1, replace(RANK, rank=3), state(1))
    metrics.set_rank(2, replace(RANK, rank=4), state(1))
    send(metrics)
    metrics.set_rank(1, replace(RANK, rank=3), state(2))
    metrics.set_measurements(events({MOVING: 11}, slot=1))
    metrics.end_rank(1)
    sink.status = 400
    send(metrics)
    sink.status = 200
    send(metrics)
    send(metrics)
    metrics.close()
    assert levels_by_rank(sink) == [[(3, 1), (4, 1)], [(3, 2), (4, 1)], [(4, 1)], [(4, 1)]]
    assert numbers(sink) == [(MOVING, 11)]


def test_last_values_do_not_wait_for_ever(sink: OtlpSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_metrics, "ENDED_KEPT_S", 0.0)
    metrics = AgentMetrics(sink.endpoint, {}, [])
    metrics.set_rank(1, RANK, state(1))
    metrics.end_rank(1)
    sink.status = 400
    send(metrics)
    sink.status = 200
    metrics.close()
    assert levels_by_rank(sink) == [[]]


def test_counters_are_totals_whatever_the_user_prefers(
    sink: OtlpSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    began_unix_ns = time.time_ns()
    metrics = AgentMetrics(sink.endpoint, {}, [])
    for count in (1, 2, 3):
        metrics.set_host(HostState(1.5, 4096, {"on_switch": 0.25}, {}, count, 0, None, 0))
        send(metrics)
    metrics.close()
    name = semconv.METRIC_ROOTWALK_AGENT_EVENTS
    sums = [one.sum for one in metrics_of(sink) if one.name == name]
    assert [one.data_points[0].as_int for one in sums] == [1, 2, 3, 3]
    assert {one.aggregation_temporality for one in sums} == {
        AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    }
    assert all(one.is_monotonic for one in sums)
    points = [one.data_points[0] for one in sums]
    assert len({point.start_time_unix_nano for point in points}) == 1
    assert began_unix_ns <= points[0].start_time_unix_nano <= points[0].time_unix_nano


def test_endpoint_that_does_not_answer_holds_nobody_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections and never answers
        metrics = AgentMetrics(f"http://127.0.0.1:{silent.getsockname()[1]}", {}, [])
        metrics._interval_s = 0.0
        began_s = time.monotonic()
        metrics.send()
        metrics.send()
        assert not metrics.is_due
        assert time.monotonic() - began_s < 1.0
        metrics.close()
        assert time.monotonic() - began_s < 2 * agent_metrics.SHUTDOWN_S


def test_interval_is_the_one_of_the_environment(
    sink: OtlpSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1")
    metrics = AgentMetrics(sink.endpoint, {}, [])
    for _ in range(2):
        wait_until(lambda: metrics.is_due)
        send(metrics)
    metrics.close()
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    metrics = AgentMetrics(sink.endpoint, {}, [])
    send(metrics)
    assert not metrics.is_due
    metrics.close()
