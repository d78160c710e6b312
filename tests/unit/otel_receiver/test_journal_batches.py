"""The journal's records on their way into the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.otel_receiver import kernels
from rootwalk.otel_receiver.decode import decode_metrics, decode_spans
from rootwalk.otel_receiver.journal import (
    JournalRecord,
    SegmentWriter,
    encode_record,
    segment_path,
)
from rootwalk.otel_receiver.journal_batches import decode_batch, find_journal_end
from rootwalk.otel_receiver.signals import Signal
from support.otlp_messages import metric, metric_request, span, trace_request


@pytest.fixture(autouse=True)
def plain_decoder() -> Iterator[None]:
    kernels.unload_kernels()
    yield
    kernels.unload_kernels()


def _write_segment(directory: Path, segment: int, *numbers: int) -> int:
    writer = SegmentWriter(directory, segment)
    writer.append([encode_record(Signal.TRACES, 9, trace_request([span(n)])) for n in numbers])
    writer.close()
    return writer.end_bytes


def test_the_end_of_a_journal(tmp_path: Path) -> None:
    assert find_journal_end(tmp_path, (0, 0)) == (0, 0)
    _write_segment(tmp_path, 3, 1, 2)
    end_bytes = _write_segment(tmp_path, 4, 3)
    assert find_journal_end(tmp_path, (0, 0)) == (4, end_bytes)
    assert find_journal_end(tmp_path, (4, end_bytes)) == (4, end_bytes)
    assert find_journal_end(tmp_path, (5, 7)) == (5, 7)


def test_what_is_torn_is_not_its_end(tmp_path: Path) -> None:
    """Killed while it wrote the first record of a new segment, and in the midst of another."""
    one_bytes = _write_segment(tmp_path, 2, 1)
    _write_segment(tmp_path, 3, 1, 2)
    _write_segment(tmp_path, 4, 3)
    for segment in (3, 4):
        path = segment_path(tmp_path, segment)
        path.write_bytes(path.read_bytes()[:-1])
    assert find_journal_end(tmp_path, (1, 0)) == (3, one_bytes)
    assert find_journal_end(tmp_path, (3, one_bytes)) == (3, one_bytes)


def test_a_batch_is_decoded_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [trace_request([span(n)]) for n in range(1, 11)]
    records = [JournalRecord(Signal.TRACES, 9, body, 1, 1) for body in bodies]
    monkeypatch.setattr("rootwalk.otel_receiver.journal_batches.PIECE_BYTES", 4 * len(bodies[0]))

    pieces = decode_batch(records)

    assert [piece["span_records"].num_rows for piece in pieces] == [4, 4, 2]
    rows = [row for piece in pieces for row in piece["span_records"].to_pylist()]
    assert rows == decode_spans([(9, body) for body in bodies]).to_arrow().to_pylist()
    assert records == []


def test_where_spans_are_decoded_at_once_points_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled decoder takes little memory and knows spans only."""
    if kernels.load_kernels() is None:
        pytest.skip("needs numba")
    spans = [trace_request([span(n)]) for n in range(1, 11)]
    gauge = {"data_points": [{"as_int": 1}]}
    points = [metric_request([metric("g", gauge=gauge)])] * 4
    records = [JournalRecord(Signal.TRACES, 9, body, 1, 1) for body in spans]
    records += [JournalRecord(Signal.METRICS, 9, body, 1, 1) for body in points]
    monkeypatch.setattr("rootwalk.otel_receiver.journal_batches.PIECE_BYTES", 2 * len(points[0]))

    pieces = decode_batch(records)

    sizes = [{name: table.num_rows for name, table in piece.items()} for piece in pieces]
    assert sizes == [{"span_records": 10, "metric_records": 2}, {"metric_records": 2}]
    assert (
        sum(size["metric_records"] for size in sizes)
        == decode_metrics([(9, b) for b in points]).row_count
    )
