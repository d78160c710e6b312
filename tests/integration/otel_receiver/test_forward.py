"""Requests are sent on, at least once, to real servers that answer well, badly or never."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from rootwalk.otel_receiver.forward import Forwarder, ForwardSnapshot, RetryPolicy
from rootwalk.otel_receiver.forward_client import connect_target, read_retry_after
from rootwalk.otel_receiver.forward_cursor import cursor_path, read_cursor
from rootwalk.otel_receiver.forward_queue import ForwardQueue
from rootwalk.otel_receiver.forward_target import read_target
from rootwalk.otel_receiver.group_commit import JournalPosition
from rootwalk.otel_receiver.journal import SegmentWriter, encode_record
from rootwalk.otel_receiver.signals import Signal
from support.forward_targets import Other, grpc_other, http_other
from support.otlp_messages import metric, metric_request, span, trace_request

DEADLINE_S = 20.0
PARTIAL = ExportTraceServiceResponse()
PARTIAL.partial_success.rejected_spans = 2
PARTIAL.partial_success.error_message = "too old"


class Tee:
    """A journal with one segment, and a forwarder of it that tries again soon."""

    def __init__(
        self, directory: Path, url: str, environment: dict[str, str], *, timeout_s: float
    ) -> None:
        target = read_target(url, environment)
        self.cursor = cursor_path(directory, target.url)
        self.writer = SegmentWriter(directory, 1)
        self.queue = ForwardQueue(directory, JournalPosition(1, 0), 1 << 20, reserve_bytes=0)
        self.forwarder = Forwarder(
            target,
            connect_target(target, timeout_s),
            self.queue,
            self.cursor,
            lambda: None,
            RetryPolicy(first_s=0.05, max_s=0.2),
        )

    def add(self, *bodies: bytes, signal: Signal = Signal.TRACES) -> None:
        self.writer.append([encode_record(signal, 1, body) for body in bodies])
        self.forwarder.extend(JournalPosition(1, self.writer.end_bytes))

    def snapshot(self) -> ForwardSnapshot:
        return self.forwarder.snapshot()

    def await_empty(self) -> ForwardSnapshot:
        await_true(lambda: self.queue.sizes().waiting_bytes == 0)
        return self.forwarder.snapshot()


def await_true(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def tee(
    directory: Path, url: str, environment: dict[str, str] | None = None, timeout_s: float = 5.0
) -> Iterator[Tee]:
    made = Tee(directory, url, environment or {}, timeout_s=timeout_s)
    made.forwarder.start()
    try:
        yield made
    finally:
        made.forwarder.stop()
        made.writer.close()


@pytest.fixture(params=[http_other, grpc_other], ids=["http", "grpc"])
def other(request: pytest.FixtureRequest) -> Iterator[Other]:
    with request.param() as made:
        yield made


def span_names(other: Other) -> list[str]:
    return [
        sent.name
        for path, body in other.accepted
        if path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for sent in scope.spans
    ]


def is_http(other: Other) -> bool:
    return other.url.startswith("http:")


def test_neighbouring_requests_of_a_signal_go_as_one(tmp_path: Path, other: Other) -> None:
    points = metric_request([metric("m", gauge={"data_points": [{"as_int": 1}]})])
    with tee(tmp_path, other.url, {"OTEL_EXPORTER_OTLP_HEADERS": "api-key=k"}) as made:
        made.add(trace_request([span(1, "a")]), trace_request([span(2, "b")]))
        made.add(points, signal=Signal.METRICS)
        snapshot = made.await_empty()

    assert span_names(other) == ["a", "b"]
    assert [body for path, body in other.accepted if path == "/v1/metrics"] == [points]
    assert snapshot.sent == {"traces": 2, "metrics": 1}
    assert {headers["api-key"] for headers in other.headers} == {"k"}
    assert read_cursor(made.cursor) == (2, 0)


@pytest.mark.parametrize(
    ("http_answer", "grpc_answer", "reason"),
    [
        ((503, {}, b""), ("UNAVAILABLE", None, b""), ("http_503", "UNAVAILABLE")),
        (
            (429, {"Retry-After": "0"}, b""),
            ("RESOURCE_EXHAUSTED", 0.01, b""),
            ("http_429", "RESOURCE_EXHAUSTED"),
        ),
    ],
)
def test_what_may_be_retried_is_sent_again(
    tmp_path: Path,
    other: Other,
    http_answer: tuple[object, object, bytes],
    grpc_answer: tuple[object, object, bytes],
    reason: tuple[str, str],
) -> None:
    other.answers = [http_answer if is_http(other) else grpc_answer] * 3
    with tee(tmp_path, other.url) as made:
        made.add(trace_request([span(1, "a")]))
        snapshot = made.await_empty()

    assert span_names(other) == ["a"]
    assert snapshot.failed == {reason[0 if is_http(other) else 1]: 3}
    assert snapshot.refused == {}


def test_what_is_refused_for_good_is_dropped_alone(tmp_path: Path, other: Other) -> None:
    """Of two requests that went as one, the second is bad: the first is taken when it comes alone."""
    if is_http(other):
        other.answers = [(400, {}, b""), (200, {}, b""), (400, {}, b"")]
    else:
        refusal = ("INVALID_ARGUMENT", None, b"no")
        other.answers = [refusal, ("OK", None, b""), refusal]
    with tee(tmp_path, other.url) as made:
        made.add(trace_request([span(1, "a")]), trace_request([span(2, "b")]))
        snapshot = made.await_empty()

    assert span_names(other) == ["a"]
    assert snapshot.sent == {"traces": 1}
    reason = "http_400" if is_http(other) else "INVALID_ARGUMENT"
    assert snapshot.refused == {("traces", reason): 1}


def test_a_refusal_of_the_sender_is_not_tried_for_each_request(
    tmp_path: Path, other: Other, caplog: pytest.LogCaptureFixture
) -> None:
    other.answers = [(401, {}, b"") if is_http(other) else ("UNAUTHENTICATED", None, b"no key")]
    with tee(tmp_path, other.url) as made:
        made.add(trace_request([span(1, "a")]), trace_request([span(2, "b")]))
        snapshot = made.await_empty()

    assert (other.asked, other.accepted) == (1, [])
    assert list(snapshot.refused.values()) == [2]
    assert "refuses traces for good" in caplog.text


def test_partial_success_is_counted(tmp_path: Path, other: Other) -> None:
    answer = PARTIAL.SerializeToString()
    other.answers = [(200, {}, answer) if is_http(other) else ("OK", None, answer)]
    with tee(tmp_path, other.url) as made:
        made.add(trace_request([span(1), span(2), span(3)]))
        snapshot = made.await_empty()

    assert (snapshot.sent, snapshot.rejected) == ({"traces": 1}, {"traces": 2})


def test_a_silent_target_is_asked_again_and_gets_everything_later(
    tmp_path: Path, other: Other
) -> None:
    other.silent.set()
    with tee(tmp_path, other.url, timeout_s=0.2) as made:
        made.add(trace_request([span(1, "a")]))
        await_true(lambda: other.asked >= 2)
        waiting_bytes = made.snapshot().sizes.waiting_bytes
        other.silent.clear()
        snapshot = made.await_empty()

    assert waiting_bytes > 0
    assert set(snapshot.failed) == {"timeout" if is_http(other) else "DEADLINE_EXCEEDED"}
    assert set(span_names(other)) == {"a"}


def test_a_target_that_is_away_gets_everything_when_it_comes(tmp_path: Path) -> None:
    with http_other() as first:
        port = int(first.url.rpartition(":")[2])
    with tee(tmp_path, first.url) as made:
        made.add(trace_request([span(1, "a")]))
        await_true(lambda: bool(made.snapshot().failed))
        with http_other(port) as second:
            made.add(trace_request([span(2, "b")]))
            snapshot = made.await_empty()

    assert span_names(second) == ["a", "b"]
    assert set(snapshot.failed) == {"no_connection"}


def test_what_is_not_sent_at_the_end_is_sent_by_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with http_other() as other:
        other.answers = [(503, {}, b"")] * 1000
        with tee(tmp_path, other.url) as made:
            made.add(trace_request([span(1, "a")]))
            await_true(lambda: other.asked > 0)
        left = read_cursor(made.cursor) if made.cursor.exists() else None
        other.answers = []
        target = read_target(other.url, {})
        queue = ForwardQueue(tmp_path, JournalPosition(1, 0), 1 << 20, reserve_bytes=0)
        following = Forwarder(
            target, connect_target(target), queue, made.cursor, lambda: None, RetryPolicy()
        )
        following.start()
        await_true(lambda: queue.sizes().waiting_bytes == 0)
        following.stop()

    assert left is None
    assert "are not sent yet; they wait in" in caplog.text
    assert span_names(other) == ["a"]


def test_gzip_when_the_environment_asks_for_it(tmp_path: Path) -> None:
    import gzip

    body = trace_request([span(1, "a" * 1000)])
    with (
        http_other() as other,
        tee(tmp_path, other.url, {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}) as made,
    ):
        made.add(body)
        made.await_empty()

    assert [gzip.decompress(sent) for sent in other.bodies()] == [body]
    assert other.headers[0]["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        ("7", 7.0),
        ("Thu, 01 Jan 1970 00:00:30 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, expected_s: float | None) -> None:
    import datetime as dt

    now = dt.datetime(1970, 1, 1, 0, 0, 10, tzinfo=dt.UTC)

    assert read_retry_after(text, now) == expected_s


def test_waiting_doubles_up_to_five_minutes_and_heeds_the_server() -> None:
    policy = RetryPolicy()
    longest = [max(policy.wait_s(n, None) for _ in range(200)) for n in (1, 2, 3, 20)]
    shortest = [min(policy.wait_s(n, None) for _ in range(200)) for n in (1, 2, 3, 20)]

    for low_s, high_s, full_s in zip(shortest, longest, (5, 10, 20, 300), strict=True):
        assert full_s / 2 <= low_s < high_s <= full_s
    assert 30 <= policy.wait_s(1, 30.0) <= 37.5
