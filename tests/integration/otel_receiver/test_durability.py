"""What was acknowledged is stored exactly once, whenever the receiver is killed."""

from __future__ import annotations

import time
from pathlib import Path

import grpc

from rootwalk.otel_receiver.journal import journal_path, list_segments
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import query_store
from support.kill_load import RECORDS_A_REQUEST, Load, kill_under_load
from support.otlp_messages import span, trace_request
from support.otlp_paths import TRACE_EXPORT
from support.receiver_process import running_receiver

# `make soak-kill` has a hundred.
KILLS = 5


def test_kill_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    result = kill_under_load(tmp_path / "s.duckdb", KILLS, seed=3)

    assert min(result.acknowledged.values()) >= KILLS * RECORDS_A_REQUEST
    assert (result.doubled, set(result.missing.values())) == (0, {0})
    assert not (tmp_path / "s.duckdb.journal").exists()


def test_a_receiver_started_again_stores_what_is_in_a_segment_of_the_same_number(
    tmp_path: Path,
) -> None:
    """Three are killed before they store anything; the second starts beside the journal that the first left.

    The third starts when a reader has stored both segments and removed them. Its journal is another one with an id of
    its own, so that a record in a segment of the same number does not count as stored already.
    """
    store = tmp_path / "s.duckdb"
    options = ("--flush-interval", "1h", "--telemetry-interval", "0")
    segments = []
    for number in (1, 2, 3):
        with (
            running_receiver(store, *options) as receiver,
            grpc.insecure_channel(receiver.grpc) as channel,
        ):
            channel.unary_unary(TRACE_EXPORT)(trace_request([span(number)]), timeout=10)
            receiver.kill()
        segments.append(list_segments(journal_path(store)))
        if number == 2:
            assert query_store(store, "SELECT count(*) FROM spans")[2] == [(2,)]
            assert list_segments(journal_path(store)) == []

    assert segments == [[1], [1, 2], [1]]
    assert query_store(store, "SELECT count(*) FROM spans")[2] == [(3,)]


def test_queries_while_the_receiver_writes(tmp_path: Path) -> None:
    """Readers and the receiver take turns with the file; the counts only grow and end at what was sent."""
    store = tmp_path / "s.duckdb"
    with running_receiver(store, "--flush-interval", "20ms") as receiver:
        load = Load(receiver, 1)
        counts = []
        for _ in range(20):
            rows = query_store(store, "SELECT count(*), count(DISTINCT span_id) FROM spans")[2]
            counts.append(rows[0][0])
            assert rows[0][0] == rows[0][1]
        receiver.stop()
        load.join()

    final = query_store(store, "SELECT count(*) FROM spans")[2][0][0]
    assert counts == sorted(counts)
    assert final >= len(load.acknowledged[Signal.TRACES]) > 0


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
