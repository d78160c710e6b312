"""What was acknowledged is stored exactly once, whenever the receiver is killed."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import grpc

from rootwalk.otel_receiver.store import query_store
from support.otlp_messages import span, trace_request
from support.receiver_process import ReceiverProcess, running_receiver, start_receiver

TRACE_EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
ROUNDS = 6
SENDERS = 3
SPANS_A_REQUEST = 20


class _Load:
    """Senders that write down the number of every span that was acknowledged."""

    def __init__(self, receiver: ReceiverProcess, first: int) -> None:
        self.acknowledged: set[int] = set()
        self.sent = first
        self._lock = threading.Lock()
        self._receiver = receiver
        self._threads = [threading.Thread(target=self._send) for _ in range(SENDERS)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        """Send until the receiver is gone; each request is sent twice, as a retry would."""
        with grpc.insecure_channel(self._receiver.grpc) as channel:
            export = channel.unary_unary(TRACE_EXPORT)
            while True:
                with self._lock:
                    first = self.sent
                    self.sent += SPANS_A_REQUEST
                numbers = range(first, first + SPANS_A_REQUEST)
                try:
                    export(trace_request([span(n) for n in numbers]), timeout=10)
                    self.acknowledged |= set(numbers)
                    export(trace_request([span(n) for n in numbers]), timeout=10)
                except grpc.RpcError:
                    return


def test_kill_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    chance = random.Random(3)  # noqa: S311  (moments to kill at, not secrets)
    acknowledged: set[int] = set()
    first = 1
    for _ in range(ROUNDS):
        receiver = start_receiver(store, "--flush-interval", "50ms")
        load = _Load(receiver, first)
        deadline = time.monotonic() + chance.uniform(0.05, 0.6)
        while time.monotonic() < deadline or not load.acknowledged:
            time.sleep(0.005)
        receiver.kill()
        load.join()
        acknowledged |= load.acknowledged
        first = load.sent

    rows = query_store(store, "SELECT span_id, count(*) FROM spans GROUP BY span_id")[2]

    stored = {int(str(span_id), 16): count for span_id, count in rows}
    assert len(acknowledged) >= ROUNDS * SPANS_A_REQUEST
    assert acknowledged - stored.keys() == set()
    assert {number for number, count in stored.items() if count != 1} == set()
    assert not (tmp_path / "s.duckdb.journal").exists()


def test_queries_while_the_receiver_writes(tmp_path: Path) -> None:
    """Readers and the receiver take turns with the file; the counts only grow and end at what was sent."""
    store = tmp_path / "s.duckdb"
    with running_receiver(store, "--flush-interval", "20ms") as receiver:
        load = _Load(receiver, 1)
        counts = []
        for _ in range(20):
            rows = query_store(store, "SELECT count(*), count(DISTINCT span_id) FROM spans")[2]
            counts.append(rows[0][0])
            assert rows[0][0] == rows[0][1]
        receiver.stop()
        load.join()

    final = query_store(store, "SELECT count(*) FROM spans")[2][0][0]
    assert counts == sorted(counts)
    assert final >= len(load.acknowledged) > 0


def test_what_is_acknowledged_can_be_read_within_the_interval(tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    with running_receiver(store, "--flush-interval", "50ms") as receiver:
        with grpc.insecure_channel(receiver.grpc) as channel:
            channel.unary_unary(TRACE_EXPORT)(trace_request([span(1)]), timeout=10)
        deadline = time.monotonic() + 10
        while query_store(store, "SELECT count(*) FROM spans")[2] != [(1,)]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        receiver.stop()
