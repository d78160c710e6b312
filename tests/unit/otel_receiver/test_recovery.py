"""What a killed receiver leaves is in the store before anything is read."""

from __future__ import annotations

from pathlib import Path

from rootwalk.otel_receiver.journal import (
    JournalLock,
    JournalRecord,
    SegmentWriter,
    encode_record,
    journal_path,
    segment_path,
)
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import save_journal_batch
from support.otlp_messages import metric, metric_request, span, trace_request
from support.stores import query_rows


def _leave_journal(store: Path, *bodies: bytes) -> Path:
    """What a killed receiver leaves: a journal that nobody holds."""
    directory = journal_path(store)
    directory.mkdir(exist_ok=True)
    writer = SegmentWriter(directory, 1)
    writer.append([encode_record(Signal.TRACES, 9, body) for body in bodies])
    writer.close()
    return directory


def test_a_reader_stores_what_a_dead_receiver_left(store: Path) -> None:
    directory = _leave_journal(store, trace_request([span(1)]), trace_request([span(2)]))

    assert query_rows(store, "SELECT count(*) FROM spans") == [(2,)]
    assert not directory.exists()
    assert query_rows(store, "SELECT count(*) FROM spans") == [(2,)]


def test_a_reader_leaves_the_journal_of_a_live_receiver(store: Path) -> None:
    directory = _leave_journal(store, trace_request([span(1)]))
    lock = JournalLock.try_take(directory, create=False)
    assert lock is not None

    assert query_rows(store, "SELECT count(*) FROM spans") == [(0,)]
    lock.release()
    assert query_rows(store, "SELECT count(*) FROM spans") == [(1,)]


def test_records_that_are_stored_are_not_stored_again(store: Path) -> None:
    """Killed between the commit and the removal of the segment. Metrics have no ids that would show a repeat."""
    body = metric_request([metric("g", gauge={"data_points": [{"as_int": 1}]})])
    directory = journal_path(store)
    directory.mkdir()
    writer = SegmentWriter(directory, 4)
    writer.append([encode_record(Signal.METRICS, 9, body)])
    first_end_bytes = writer.end_bytes
    writer.append([encode_record(Signal.METRICS, 9, body)])
    writer.close()
    save_journal_batch(store, [JournalRecord(Signal.METRICS, 9, body, 4, first_end_bytes)])

    assert query_rows(store, "SELECT count(*) FROM metrics") == [(2,)]


def test_a_torn_tail_does_not_hide_what_is_before_it(store: Path) -> None:
    directory = _leave_journal(store, trace_request([span(1)]), trace_request([span(2)]))
    path = segment_path(directory, 1)
    path.write_bytes(path.read_bytes()[:-1])

    assert query_rows(store, "SELECT span_id FROM spans") == [("0000000000000001",)]


def test_a_store_that_was_never_made_is_made_from_the_journal(tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    _leave_journal(store, trace_request([span(1)]))

    assert query_rows(store, "SELECT count(*) FROM spans") == [(1,)]
