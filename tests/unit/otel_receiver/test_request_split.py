from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.request_checks import parse_request
from rootwalk.otel_receiver.request_split import split_request
from rootwalk.otel_receiver.signals import Signal
from support.messages import messages_of
from support.otlp_messages import span, trace_request

SIGNALS: list[tuple[Signal, Any, tuple[str, str, str]]] = [
    (Signal.TRACES, ExportTraceServiceRequest, ("resource_spans", "scope_spans", "spans")),
    (Signal.METRICS, ExportMetricsServiceRequest, ("resource_metrics", "scope_metrics", "metrics")),
    (Signal.LOGS, ExportLogsServiceRequest, ("resource_logs", "scope_logs", "log_records")),
]


def _records(request: Any, lists: tuple[str, str, str]) -> list[tuple[bytes, ...]]:
    """Each record with the resource and the scope that it belongs to, in order."""
    return [
        (
            *tuple(
                message.SerializeToString(deterministic=True)
                for message in (group.resource, scope.scope, record)
            ),
            group.schema_url.encode(),
            scope.schema_url.encode(),
        )
        for group in getattr(request, lists[0])
        for scope in getattr(group, lists[1])
        for record in getattr(scope, lists[2])
    ]


@pytest.mark.parametrize(("signal", "request_type", "lists"), SIGNALS)
@given(data=st.data(), piece_bytes=st.integers(1, 200))
def test_pieces_hold_the_same_records_of_the_same_resources(
    signal: Signal,
    request_type: Any,
    lists: tuple[str, str, str],
    data: st.DataObject,
    piece_bytes: int,
) -> None:
    message = data.draw(messages_of(request_type))

    pieces = list(split_request(message.SerializeToString(), piece_bytes))

    found = [r for piece in pieces for r in _records(parse_request(signal, piece), lists)]
    assert found == _records(message, lists)


def test_pieces_are_small_unless_a_record_is_large() -> None:
    spans = [span(n + 1) for n in range(100)]
    spans[50].name = "x" * 1000
    body = trace_request(spans)
    head_bytes = len(trace_request([]))

    sizes = [len(piece) for piece in split_request(body, 300)]

    assert len(body) > 5000
    assert max(sizes) > 1000 > 310 + head_bytes > sorted(sizes)[-2]


def test_a_small_request_stays_as_it_is() -> None:
    body = trace_request([span(1), span(2)])

    assert list(split_request(body)) == [body]


@pytest.mark.parametrize(
    ("body", "saw"),
    [
        (b"\x0a\x7f" + bytes(20), "a field that goes on after the end"),
        (b"\x0a\xff" + b"\xff" * 20, "a number without an end"),
        (b"\x0b" + bytes(20), "a field of wire type 3"),
        (b"\x0a\x12" + b"\x12\x10" + b"\xff" * 16, "a number without an end"),
    ],
)
def test_bytes_that_are_no_request(body: bytes, saw: str) -> None:
    with pytest.raises(DecodeError, match=saw):
        list(split_request(body, 8))


@given(st.binary(min_size=5, max_size=60))
def test_any_bytes_are_cut_or_refused(body: bytes) -> None:
    try:
        pieces = list(split_request(body, 4))
    except DecodeError:
        return
    assert all(isinstance(piece, bytes) for piece in pieces)
