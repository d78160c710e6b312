"""The journal as a queue: windows in order, a limit, and bytes that add up.

A record of a 3 byte body takes 32 bytes in a segment, which begins with 44 bytes of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.otel_receiver import forward_queue
from rootwalk.otel_receiver.forward_cursor import cursor_path, find_floor, read_cursor, save_cursor
from rootwalk.otel_receiver.forward_queue import ForwardQueue, QueueSizes
from rootwalk.otel_receiver.group_commit import JournalPosition
from rootwalk.otel_receiver.journal import (
    SegmentWriter,
    encode_record,
    list_segments,
    remove_journal,
    remove_segments,
)
from rootwalk.otel_receiver.signals import Signal

BEGIN = JournalPosition(1, 0)
RECORD_BYTES = 32
HEADER_BYTES = 44


def write_segment(directory: Path, segment: int, *bodies: bytes) -> JournalPosition:
    writer = SegmentWriter(directory, segment)
    writer.append([encode_record(Signal.TRACES, 1, body) for body in bodies])
    writer.close()
    return JournalPosition(segment, writer.end_bytes)


def taken_bodies(queue: ForwardQueue) -> list[bytes]:
    return [record.body for record in queue.take()]


def test_records_come_in_order_over_segments_and_are_settled(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, b"one", b"two")
    queue = ForwardQueue(tmp_path, BEGIN, 1000, reserve_bytes=0)
    queue.extend(write_segment(tmp_path, 2, b"six"))

    before = queue.sizes()
    bodies = taken_bodies(queue)
    in_progress, settled = queue.sizes(), queue.settled
    queue.settle()

    assert before == in_progress == QueueSizes(3 * RECORD_BYTES, 0, 0)
    assert bodies == [b"one", b"two", b"six"]
    assert settled == BEGIN
    assert queue.sizes() == QueueSizes(0, 3 * RECORD_BYTES, 0)
    assert queue.settled == JournalPosition(2, HEADER_BYTES + RECORD_BYTES)


def test_windows_are_limited_and_go_on_where_they_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_queue, "MAX_WINDOW_BYTES", 6)
    write_segment(tmp_path, 1, b"one", b"two", b"six", b"longer than a window")
    queue = ForwardQueue(tmp_path, BEGIN, 1000, reserve_bytes=0)

    windows = []
    while queue.sizes().waiting_bytes:
        windows.append(taken_bodies(queue))
        queue.settle()

    assert windows == [[b"one", b"two"], [b"six"], [b"longer than a window"]]


def test_only_what_is_durable_is_taken(tmp_path: Path) -> None:
    queue = ForwardQueue(tmp_path, BEGIN, 1000, reserve_bytes=0)
    write_segment(tmp_path, 1, b"one", b"two")
    queue.extend(JournalPosition(1, HEADER_BYTES + RECORD_BYTES))

    assert taken_bodies(queue) == [b"one"]


def test_over_the_limit_the_oldest_segments_are_given_up(tmp_path: Path) -> None:
    """Room for two records: of three segments with one each, the first goes when the third begins."""
    queue = ForwardQueue(tmp_path, BEGIN, 2 * RECORD_BYTES, reserve_bytes=0)
    given_up = [
        queue.extend(write_segment(tmp_path, n, body))
        for n, body in enumerate([b"one", b"two", b"six"], 1)
    ]

    assert given_up == [False, False, True]
    assert queue.settled == JournalPosition(2, 0)
    assert queue.sizes() == QueueSizes(2 * RECORD_BYTES, 0, RECORD_BYTES)
    assert taken_bodies(queue) == [b"two", b"six"]


def test_what_is_given_up_while_it_is_sent_counts_as_sent(tmp_path: Path) -> None:
    queue = ForwardQueue(tmp_path, BEGIN, RECORD_BYTES, reserve_bytes=0)
    queue.extend(write_segment(tmp_path, 1, b"one"))
    queue.take()
    queue.extend(write_segment(tmp_path, 2, b"two"))
    queue.extend(write_segment(tmp_path, 3, b"six"))
    queue.settle()

    assert queue.sizes() == QueueSizes(RECORD_BYTES, RECORD_BYTES, RECORD_BYTES)
    assert taken_bodies(queue) == [b"six"]


def test_a_segment_that_is_gone_is_counted_as_dropped(tmp_path: Path) -> None:
    queue = ForwardQueue(tmp_path, BEGIN, 1000, reserve_bytes=0)
    queue.extend(write_segment(tmp_path, 1, b"one"))
    queue.extend(write_segment(tmp_path, 2, b"two"))
    (tmp_path / "000000000001.segment").unlink()

    assert taken_bodies(queue) == [b"two"]
    queue.settle()
    assert queue.sizes() == QueueSizes(0, RECORD_BYTES, RECORD_BYTES)


def test_a_torn_tail_ends_a_segment_and_not_the_queue(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, b"one")
    with (tmp_path / "000000000001.segment").open("ab") as file:
        file.write(b"torn")
    queue = ForwardQueue(tmp_path, BEGIN, 1000, reserve_bytes=0)
    queue.extend(write_segment(tmp_path, 2, b"two"))

    assert taken_bodies(queue) == [b"one", b"two"]


def test_finish_lets_go_of_a_settled_segment_only(tmp_path: Path) -> None:
    queue = ForwardQueue(tmp_path, BEGIN, 1000, reserve_bytes=0)
    queue.extend(write_segment(tmp_path, 1, b"one"))
    queue.take()

    queue.finish()
    unsettled = queue.settled
    queue.settle()
    queue.finish()

    assert unsettled == BEGIN
    assert queue.settled == JournalPosition(2, 0)
    assert queue.sizes() == QueueSizes(0, RECORD_BYTES, 0)


def test_segments_stay_until_every_target_has_passed_them(tmp_path: Path) -> None:
    for segment in (1, 2, 3):
        write_segment(tmp_path, segment, b"one")
    save_cursor(cursor_path(tmp_path, "http://a"), "http://a", (2, 10))
    save_cursor(cursor_path(tmp_path, "http://b"), "http://b", (3, 0))

    remove_segments(tmp_path, before=3)

    assert find_floor(tmp_path) == 2
    assert list_segments(tmp_path) == [2, 3]


def test_a_damaged_cursor_holds_everything(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, b"one")
    cursor_path(tmp_path, "http://a").write_text("")

    remove_segments(tmp_path, before=9)

    assert read_cursor(cursor_path(tmp_path, "http://a")) == (0, 0)
    assert list_segments(tmp_path) == [1]


def test_a_journal_that_is_still_to_be_sent_is_not_removed(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    write_segment(journal, 1, b"one")
    cursor = cursor_path(journal, "http://a")
    save_cursor(cursor, "http://a", (1, 0), is_durable=True)

    remove_journal(journal)
    kept = list_segments(journal)
    save_cursor(cursor, "http://a", (2, 0))
    remove_journal(journal)

    assert kept == [1]
    assert not journal.exists()
