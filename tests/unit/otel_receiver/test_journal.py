from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.otel_receiver.journal import (
    SEGMENT_HEADER_BYTES,
    JournalLock,
    SegmentWriter,
    encode_record,
    journal_path,
    list_segments,
    read_records,
    remove_journal,
    remove_segments,
    segment_path,
)
from rootwalk.otel_receiver.signals import Signal

BODIES = (b"first", b"", b"third and longest")
# marker 8 + length 4 + signal 1 + time 8 + crc of the body 4 + crc of the head 4.
HEAD_BYTES = 29
# 8 bytes of magic, two ids of 16 and a crc of 4, then each head and body.
ENDS = (44 + 29 + 5, 44 + 29 + 5 + 29, 44 + 29 + 5 + 29 + 29 + 17)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Segment 3 with the three bodies."""
    writer = SegmentWriter(tmp_path, 3)
    writer.append([encode_record(Signal.TRACES, 10 + n, body) for n, body in enumerate(BODIES)])
    writer.close()
    return tmp_path


def test_records_come_back_in_order(journal: Path) -> None:
    records = list(read_records(journal, 3, 0))

    assert [record.body for record in records] == list(BODIES)
    assert [record.received_unix_ns for record in records] == [10, 11, 12]
    assert [record.end_bytes for record in records] == list(ENDS)
    assert {(record.signal, record.segment) for record in records} == {(Signal.TRACES, 3)}


def test_reading_begins_and_ends_at_records(journal: Path) -> None:
    assert [r.body for r in read_records(journal, 3, ENDS[0])] == list(BODIES[1:])
    assert [r.body for r in read_records(journal, 3, 0, ENDS[1])] == list(BODIES[:2])
    assert list(read_records(journal, 3, ENDS[2])) == []


@pytest.mark.parametrize("size_bytes", range(ENDS[2]))
def test_a_tail_torn_at_any_byte_is_cut(journal: Path, size_bytes: int) -> None:
    path = segment_path(journal, 3)
    path.write_bytes(path.read_bytes()[:size_bytes])

    whole = sum(1 for end in ENDS if end <= size_bytes)
    assert [record.body for record in read_records(journal, 3, 0)] == list(BODIES[:whole])


@pytest.mark.parametrize("position", range(SEGMENT_HEADER_BYTES, ENDS[2]))
def test_a_flipped_bit_at_any_byte_costs_one_record(journal: Path, position: int) -> None:
    path = segment_path(journal, 3)
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)

    hit = sum(1 for end in ENDS if end <= position)
    others = [body for number, body in enumerate(BODIES) if number != hit]
    assert [record.body for record in read_records(journal, 3, 0)] == others


def test_a_file_that_is_no_segment_holds_nothing(tmp_path: Path) -> None:
    segment_path(tmp_path, 1).write_bytes(b"something else entirely")

    assert list(read_records(tmp_path, 1, 0)) == []


def test_stored_segments_are_removed(tmp_path: Path) -> None:
    for segment in (2, 10, 9):
        SegmentWriter(tmp_path, segment).close()

    remove_segments(tmp_path, before=10)

    assert list_segments(tmp_path) == [10]


def test_a_segment_is_never_written_twice(tmp_path: Path) -> None:
    SegmentWriter(tmp_path, 1).close()

    with pytest.raises(FileExistsError):
        SegmentWriter(tmp_path, 1)


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    directory = journal_path(tmp_path / "s.duckdb")
    lock = JournalLock.try_take(directory, create=True)
    assert lock is not None

    assert JournalLock.try_take(directory, create=True) is None
    lock.release()
    lock.release()
    again = JournalLock.try_take(directory, create=False)
    assert again is not None
    remove_journal(directory)
    again.release()
    assert not directory.exists()


def test_no_journal_no_lock(tmp_path: Path) -> None:
    assert JournalLock.try_take(tmp_path / "none", create=False) is None
    assert list_segments(tmp_path / "none") == []


def test_a_lock_on_a_removed_journal_is_not_a_lock(tmp_path: Path) -> None:
    """The file that the first holder locked is gone: who comes next locks a new one."""
    directory = tmp_path / "s.journal"
    first = JournalLock.try_take(directory, create=True)
    assert first is not None
    remove_journal(directory)

    second = JournalLock.try_take(directory, create=True)

    assert second is not None
    first.release()
    second.release()
