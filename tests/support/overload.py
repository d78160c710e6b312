"""Senders that offer more than a receiver can take and repeat until everything is acknowledged."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import requests

from rootwalk.otel_receiver.store import query_store
from support.otlp_messages import span, trace_request
from support.otlp_paths import TRACE_EXPORT
from support.receiver_process import ReceiverProcess

SPANS = 1000
SENDERS = 32
STORE_TIMEOUT_S = 300.0
# A sender repeats after what the receiver asks for; less here, so that it is pressed harder.
REPEAT_S = 0.2


@dataclass
class OverloadReport:
    """What was offered and what became of it."""

    offered_spans: int = 0
    acknowledged_spans: int = 0
    refused_requests: int = 0
    seconds: float = 0.0
    unexpected: list[str] = field(default_factory=list)


class RequestMaker:
    """Makes requests of `SPANS` spans with ten attributes, all alike but for their trace ids."""

    def __init__(self) -> None:
        marker = b"\xa5" * 16
        spans = [
            span(n + 1, trace_id=marker, attributes={f"key.{i}": f"value {i}" for i in range(10)})
            for n in range(SPANS)
        ]
        self._pattern, self._marker = trace_request(spans), marker

    def request(self, number: int) -> bytes:
        """Return a request whose spans nobody else has."""
        return self._pattern.replace(self._marker, number.to_bytes(16, "big"))


def measure_capacity(receiver: ReceiverProcess, seconds: float) -> tuple[float, int]:
    """Return the spans per second that a receiver takes from two senders and stores, and how many it took.

    What is acknowledged faster waits in the journal, so the time runs until all can be read.
    """
    start_s = time.monotonic()
    spans = _send(receiver, 2, rate=None, seconds=seconds, first=1).acknowledged_spans
    while query_store(receiver.store, "SELECT count(*) FROM spans")[2] != [(spans,)]:
        assert time.monotonic() < start_s + STORE_TIMEOUT_S
        time.sleep(0.2)
    return spans / (time.monotonic() - start_s), spans


def overload(receiver: ReceiverProcess, spans_per_s: float, seconds: float) -> OverloadReport:
    """Offer spans at a rate for so long, and return when all are acknowledged."""
    return _send(receiver, SENDERS, rate=spans_per_s / SPANS, seconds=seconds, first=1 << 40)


def _send(
    receiver: ReceiverProcess, senders: int, *, rate: float | None, seconds: float, first: int
) -> OverloadReport:
    report = OverloadReport()
    lock = threading.Lock()
    numbers: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    maker = RequestMaker()
    arguments = (receiver, maker, numbers, report, lock)
    threads = [
        threading.Thread(target=_send_grpc if n % 2 == 0 else _send_http, args=arguments)
        for n in range(senders)
    ]
    start_s = time.monotonic()
    for thread in threads:
        thread.start()
    number = first
    while (elapsed_s := time.monotonic() - start_s) < seconds:
        # Without a rate the senders are kept busy; with one, what they cannot send waits.
        due = first + elapsed_s * rate if rate is not None else number + senders - numbers.qsize()
        while number < due:
            numbers.put(number)
            number += 1
        time.sleep(0.01)
    for _ in threads:
        numbers.put(None)
    for thread in threads:
        thread.join()
    report.offered_spans = (number - first) * SPANS
    report.seconds = time.monotonic() - start_s
    return report


def _send_grpc(
    receiver: ReceiverProcess,
    maker: RequestMaker,
    numbers: queue.SimpleQueue[int | None],
    report: OverloadReport,
    lock: threading.Lock,
) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(receiver.grpc, options=options) as channel:
        export = channel.unary_unary(TRACE_EXPORT)

        def send(body: bytes) -> str:
            try:
                export(body, timeout=60)
            except grpc.RpcError as error:
                return str(error.code().name)
            return "OK"

        while (number := numbers.get()) is not None:
            _repeat(send, maker.request(number), {"UNAVAILABLE", "DEADLINE_EXCEEDED"}, report, lock)


def _send_http(
    receiver: ReceiverProcess,
    maker: RequestMaker,
    numbers: queue.SimpleQueue[int | None],
    report: OverloadReport,
    lock: threading.Lock,
) -> None:
    with requests.Session() as session:
        session.headers["Content-Type"] = "application/x-protobuf"

        def send(body: bytes) -> str:
            try:
                response = session.post(f"http://{receiver.http}/v1/traces", body, timeout=60)
            except requests.ConnectionError:
                return "503"
            return "OK" if response.status_code == 200 else str(response.status_code)

        while (number := numbers.get()) is not None:
            _repeat(send, maker.request(number), {"429", "502", "503", "504"}, report, lock)


def _repeat(
    send: Callable[[bytes], str],
    body: bytes,
    retryable: set[str],
    report: OverloadReport,
    lock: threading.Lock,
) -> None:
    while (answer := send(body)) != "OK":
        with lock:
            report.refused_requests += 1
            if answer not in retryable:
                report.unexpected.append(answer)
                return
        time.sleep(REPEAT_S)
    with lock:
        report.acknowledged_spans += SPANS
