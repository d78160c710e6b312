"""A request says by what is in it which signal it is of."""

from __future__ import annotations

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.request_job import name_job
from rootwalk.otel_receiver.request_signal import find_signal
from rootwalk.otel_receiver.signals import Signal
from support.log_and_profile_messages import log_record, log_request, profile, profile_request
from support.otlp_messages import metric, metric_request, span, trace_request

POINT = {"data_points": [{"as_double": 1.0}]}
TRACES, METRICS, LOGS, PROFILES = Signal
REQUESTS = {
    "span": (TRACES, trace_request([span(1)])),
    "span without times": (
        TRACES,
        trace_request([span(1, start_time_unix_nano=0, end_time_unix_nano=0)]),
    ),
    "span with a bad id": (TRACES, trace_request([span(1, trace_id=b"ab")])),
    "gauge": (METRICS, metric_request([metric("m", gauge=POINT)])),
    "sum": (METRICS, metric_request([metric("m", sum=POINT)])),
    # As long as a trace id, and with a unit as long as a span id it would be a span.
    "name of 16 bytes": (METRICS, metric_request([metric("a" * 16, unit="b" * 8, sum=POINT)])),
    "log": (LOGS, log_request([log_record(time_unix_nano=5, body="x")])),
    "log without time": (LOGS, log_request([log_record(body="x")])),
    "log with observed time": (LOGS, log_request([log_record(observed_time_unix_nano=5)])),
    "profile": (PROFILES, profile_request([profile([])])),
    "no record": (TRACES, trace_request([])),
    "nothing": (TRACES, b""),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_signal_is_found_in_the_first_record(name: str) -> None:
    signal, body = REQUESTS[name]
    assert find_signal(memoryview(body)) is signal


def test_first_record_may_be_behind_empty_lists() -> None:
    body = trace_request([]) + trace_request([span(1)]) + metric_request([])
    assert find_signal(memoryview(body)) is TRACES


def test_a_metric_with_a_name_as_long_as_an_id_is_a_metric() -> None:
    named = metric("process.cpu.time", description="CPU time", gauge=POINT)
    assert find_signal(memoryview(metric_request([named]))) is METRICS


@pytest.mark.parametrize("body", [b"\x08\x01", b"\x0a\x7f", b"\x0a\x02\x12\x7f", b"PK\x03\x04"])
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(DecodeError):
        find_signal(memoryview(body))


def test_no_field_of_a_span_is_one_of_the_others() -> None:
    numbers = {field.name: field.number for field in Span.DESCRIPTOR.fields}
    assert numbers["trace_id"] == 1
    assert numbers["span_id"] == 2
    assert (numbers["start_time_unix_nano"], numbers["end_time_unix_nano"]) == (7, 8)


@pytest.mark.parametrize(
    ("signal", "body"),
    [
        (TRACES, trace_request([span(1)], resource={"training.job.id": "own"})),
        (LOGS, log_request([log_record(body="x")], resource={"training.job.id": "own"})),
        (PROFILES, profile_request([profile([])])),
    ],
)
def test_a_job_that_is_named_stays(signal: Signal, body: bytes) -> None:
    assert name_job(signal, body, "other") == body


@pytest.mark.parametrize(
    ("signal", "body"),
    [
        (TRACES, trace_request([span(1)], resource={"a": "b"})),
        (METRICS, metric_request([metric("m", gauge=POINT)], resource={})),
        (LOGS, log_request([log_record(body="x")], resource={})),
        (PROFILES, profile_request([profile([])], attributes=[])),
    ],
)
def test_a_job_is_named_where_there_is_none(signal: Signal, body: bytes) -> None:
    named = name_job(signal, body, "j7")
    assert b"training.job.id" in named
    assert b"j7" in named
    assert name_job(signal, named, "j8") == named
