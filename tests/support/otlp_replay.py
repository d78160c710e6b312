"""Recorded OTLP, sent again to another receiver, with one host's clock put wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import requests
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.otlp_relay import Request


def _is_from(resource: Any, host: str) -> bool:
    return any(
        entry.key == "host.name" and entry.value.string_value == host
        for entry in resource.attributes
    )


def _shift_spans(body: bytes, host: str, shift_ns: int) -> bytes:
    message = ExportTraceServiceRequest.FromString(body)
    for resource in message.resource_spans:
        if not _is_from(resource.resource, host):
            continue
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            span.start_time_unix_nano += shift_ns
            span.end_time_unix_nano += shift_ns
            for event in span.events:
                event.time_unix_nano += shift_ns
    moved: bytes = message.SerializeToString()
    return moved


def _shift_metrics(body: bytes, host: str, shift_ns: int) -> bytes:
    message = ExportMetricsServiceRequest.FromString(body)
    for resource in message.resource_metrics:
        if not _is_from(resource.resource, host):
            continue
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            data = getattr(metric, str(metric.WhichOneof("data")))
            for point in data.data_points:
                point.time_unix_nano += shift_ns
                if point.start_time_unix_nano:
                    point.start_time_unix_nano += shift_ns
    moved: bytes = message.SerializeToString()
    return moved


def _shift_logs(body: bytes, host: str, shift_ns: int) -> bytes:
    message = ExportLogsServiceRequest.FromString(body)
    for resource in message.resource_logs:
        if not _is_from(resource.resource, host):
            continue
        for record in (record for scope in resource.scope_logs for record in scope.log_records):
            record.time_unix_nano += shift_ns
            record.observed_time_unix_nano += shift_ns
    moved: bytes = message.SerializeToString()
    return moved


def shift_host(recording: Iterable[Request], host: str, shift_ns: int) -> list[tuple[str, bytes]]:
    """Return (path, body) of every acknowledged request with the times of one host moved.

    Raises:
        KeyError: If the recording holds a signal that cannot be moved here.
    """
    by_path = {
        "/v1/traces": _shift_spans,
        "/v1/metrics": _shift_metrics,
        "/v1/logs": _shift_logs,
    }
    return [
        (request.path, by_path[request.path](request.body, host, shift_ns))
        for request in recording
        if request.status == 200
    ]


def replay(messages: Iterable[tuple[str, bytes]], endpoint: str) -> None:
    """Send requests to a receiver, one after the other; each must be acknowledged."""
    with requests.Session() as session:
        session.trust_env = False
        session.headers["Content-Type"] = "application/x-protobuf"
        for path, body in messages:
            answer = session.post(endpoint + path, data=body, timeout=30)
            assert answer.status_code == 200, answer.text
