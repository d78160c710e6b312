from __future__ import annotations

from typing import Any

import pytest

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.decode import decode_spans
from rootwalk.otel_receiver.request_checks import (
    build_export_response,
    describe_rejected,
    parse_request,
    read_json_request,
    read_request,
)
from rootwalk.otel_receiver.signals import Signal
from support.otlp_messages import (
    log_request,
    metric,
    metric_request,
    profile_request,
    span,
    trace_request,
)


@pytest.mark.parametrize("signal", list(Signal))
def test_bytes_that_are_no_request(signal: Signal) -> None:
    with pytest.raises(DecodeError, match=f"cannot decode a request for {signal}: saw 3 bytes"):
        read_request(signal, b"\x0a\xff\xff")


def test_an_empty_request_holds_nothing() -> None:
    request = read_request(Signal.TRACES, b"")

    assert (request.accepted, request.rejected, request.body) == (0, 0, b"")
    assert read_json_request(Signal.TRACES, b"") == b""
    assert build_export_response(Signal.TRACES, 0, None).SerializeToString() == b""


def test_spans_without_ids_are_taken_out() -> None:
    body = trace_request(
        [
            span(1),
            span(2, span_id=b"short"),
            span(3, trace_id=bytes(16)),
            span(4),
            span(5, span_id=b""),
        ]
    )

    request = read_request(Signal.TRACES, body)

    kept = [row["span_id"] for row in decode_spans([(7, bytes(request.body))]).rows()]
    answer = build_export_response(Signal.TRACES, 3, describe_rejected(Signal.TRACES, 3))
    assert (request.accepted, request.rejected) == (2, 3)
    assert kept == ["0000000000000001", "0000000000000004"]
    assert answer.partial_success.rejected_spans == 3
    assert answer.partial_success.error_message.startswith("cannot store 3 spans")


def test_points_are_counted() -> None:
    sent = metric("g", gauge={"data_points": [{"as_int": 1}, {"as_int": 2}]})

    assert read_request(Signal.METRICS, metric_request([sent, metric("none")])).accepted == 2


def test_log_records_are_counted() -> None:
    assert read_request(Signal.LOGS, log_request(["a", "b", "c"])).accepted == 3


def test_profile_samples_are_counted() -> None:
    body = profile_request([[{"stack_index": 1}, {"stack_index": 0}], [{"stack_index": 1}]])

    request = read_request(Signal.PROFILES, body)

    assert (request.accepted, request.rejected, request.body) == (3, 0, body)


@pytest.mark.parametrize(
    "sample",
    [
        {"stack_index": 2},
        {"stack_index": -1},
        {"link_index": 1},
        {"attribute_indices": [0, 1]},
    ],
)
def test_profiles_that_point_outside_their_dictionary_are_taken_out(sample: Any) -> None:
    """The dictionary of the builder holds two stacks and nothing else."""
    body = profile_request([[{"stack_index": 1}], [{"stack_index": 1}, sample]])

    request = read_request(Signal.PROFILES, body)

    kept = parse_request(Signal.PROFILES, request.body)
    profiles = kept.resource_profiles[0].scope_profiles[0].profiles
    answer = build_export_response(Signal.PROFILES, 1, describe_rejected(Signal.PROFILES, 1))
    assert (request.accepted, request.rejected) == (1, 1)
    assert [len(profile.samples) for profile in profiles] == [1]
    assert answer.partial_success.rejected_profiles == 1
    assert answer.partial_success.error_message.startswith("cannot store 1 profiles")


@pytest.mark.parametrize("depth", [40, 60, 300])
def test_json_is_refused_where_its_protobuf_could_not_be_read_again(depth: int) -> None:
    """Protobuf reads a hundred messages in each other; six are around the first value and two for each level."""
    value = '{"arrayValue":{"values":[' * depth + "{}" + "]}}" * depth
    record = f'{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{{"body":{value}}}]}}]}}]}}'
    body = read_json_request(Signal.LOGS, record.encode())

    if depth == 40:
        assert read_request(Signal.LOGS, body).accepted == 1
    else:
        with pytest.raises(DecodeError, match="cannot decode a request for logs"):
            read_request(Signal.LOGS, body)
