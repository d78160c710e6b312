from __future__ import annotations

import threading
from pathlib import Path

from rootwalk.otel_receiver.group_commit import GroupCommit, JournalPosition
from rootwalk.otel_receiver.journal import encode_record, list_segments, read_records
from rootwalk.otel_receiver.signals import Signal


def _submit(journal: GroupCommit, body: bytes) -> OSError | None:
    """Append one record and wait for the answer."""
    answered = threading.Event()
    answers: list[OSError | None] = []

    def on_done(failure: OSError | None) -> None:
        answers.append(failure)
        answered.set()

    journal.submit(encode_record(Signal.TRACES, 1, body), 1, on_done)
    assert answered.wait(10)
    return answers[0]


def test_what_is_answered_is_in_the_file(tmp_path: Path) -> None:
    ends: list[tuple[JournalPosition, int]] = []
    journal = GroupCommit(tmp_path, 5, lambda end, records: ends.append((end, records)))
    journal.start()

    assert _submit(journal, b"a") is None
    assert [record.body for record in read_records(tmp_path, 5, 0)] == [b"a"]
    assert _submit(journal, b"b") is None
    journal.stop()
    journal.stop()

    assert [record.body for record in read_records(tmp_path, 5, 0)] == [b"a", b"b"]
    # 44 bytes of the segment's header; 29 of a record's head and 1 of body, twice.
    assert ends == [(JournalPosition(5, 74), 1), (JournalPosition(5, 104), 1)]


def test_many_waiting_requests_are_all_answered_at_a_stop(tmp_path: Path) -> None:
    answers: list[OSError | None] = []
    journal = GroupCommit(tmp_path, 1, lambda _end, _records: None)
    for number in range(100):
        journal.submit(encode_record(Signal.TRACES, 1, b"%d" % number), 1, answers.append)
    journal.start()
    journal.stop()

    assert answers == [None] * 100
    assert len(list(read_records(tmp_path, 1, 0))) == 100


def test_a_failed_write_fails_its_requests_and_no_later_ones(tmp_path: Path) -> None:
    """The directory is missing for a while, as it would be on a disk that is full for a while."""
    directory = tmp_path / "s.journal"
    journal = GroupCommit(directory, 1, lambda _end, _records: None)
    journal.start()

    failure = _submit(journal, b"a")
    directory.mkdir()
    after = _submit(journal, b"b")
    journal.stop()

    assert isinstance(failure, FileNotFoundError)
    assert after is None
    assert [r.body for s in list_segments(directory) for r in read_records(directory, s, 0)] == [
        b"b"
    ]


def test_stop_without_start(tmp_path: Path) -> None:
    GroupCommit(tmp_path, 1, lambda _end, _records: None).stop()
