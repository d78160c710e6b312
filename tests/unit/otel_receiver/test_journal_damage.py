"""A damaged journal: every whole record outside the damage is stored, the damage is said, and nothing is deleted."""

from __future__ import annotations

import logging
import random
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
    segment_path,
)
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import create_store
from support.otlp_messages import span, trace_request
from support.stores import query_rows

RECORDS = 60
SEED = 20261128
PAGE_BYTES = 4096


class Journal:
    """One segment with records of different sizes, and which bytes each of them takes."""

    def __init__(self, directory: Path, randomness: random.Random) -> None:
        self.directory = directory
        directory.mkdir()
        writer = SegmentWriter(directory, 1)
        self.bodies: list[bytes] = []
        self.ranges: list[tuple[int, int]] = []
        for number in range(RECORDS):
            body = b"%02d" % number
            body += randomness.randbytes(randomness.choice((0, 3, 40, 700, 9000)))
            begin = writer.end_bytes
            writer.append([encode_record(Signal.TRACES, 9, body)])
            self.bodies.append(body)
            self.ranges.append((begin, writer.end_bytes))
        self.end_bytes = writer.end_bytes
        writer.close()
        self.path = segment_path(directory, 1)
        self.content = self.path.read_bytes()

    def damage(self, randomness: random.Random) -> tuple[bytes, tuple[int, int]]:
        """Return the segment with a fault, and which bytes it may have changed."""
        data = bytearray(self.content)
        at = randomness.randrange(len(data))
        match randomness.choice(("bit", "byte", "page", "cut", "length", "checksum", "burst")):
            case "bit":
                data[at] ^= 1 << randomness.randrange(8)
                return bytes(data), (at, at + 1)
            case "byte":
                data[at] ^= randomness.randrange(1, 256)
                return bytes(data), (at, at + 1)
            case "page":
                first = at - at % PAGE_BYTES
                last = min(first + PAGE_BYTES, len(data))
                data[first:last] = bytes(last - first)
                return bytes(data), (first, last)
            case "cut":
                return bytes(data[:at]), (at, len(data))
            case "burst":
                last = min(at + randomness.randrange(1, 3 * PAGE_BYTES), len(data))
                data[at:last] = randomness.randbytes(last - at)
                return bytes(data), (at, last)
            case field:
                begin, _ = randomness.choice(self.ranges)
                first = begin + (8 if field == "length" else 21)
                data[first : first + 4] = randomness.randbytes(4)
                return bytes(data), (first, first + 4)

    def outside(self, damage: tuple[int, int]) -> list[bytes]:
        """Return the bodies that a fault did not touch."""
        return [
            body
            for body, (begin, end) in zip(self.bodies, self.ranges, strict=True)
            if end <= damage[0] or begin >= damage[1]
        ]


def _try_corruptions(tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int) -> None:
    randomness = random.Random(SEED)  # noqa: S311  (which bytes are damaged)
    for number in range(count):
        journal = Journal(tmp_path / f"s{number}.duckdb.journal", randomness)
        content, damage = journal.damage(randomness)
        if content == journal.content:
            continue
        journal.path.write_bytes(content)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = [record.body for record in read_records(journal.directory, 1, 0)]
            remove_journal(journal.directory)
        expected = journal.outside(damage)
        # A record that was hit is only there where the fault did not change it.
        assert [body for body in found if body in expected] == expected, (number, damage)
        assert all(body in journal.bodies for body in found)
        if damage[0] in {begin for begin, _ in journal.ranges} and len(content) == damage[0]:
            continue  # cut between two records: `check_end` says that, see below
        assert len(caplog.messages) >= 1, (number, damage)
        kept = list(tmp_path.glob(f"s{number}.duckdb.journal-*.damaged"))
        assert [path.read_bytes() for path in kept] == [content], (number, damage)
        kept[0].unlink()


def test_200_corruptions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _try_corruptions(tmp_path, caplog, 200)


@pytest.mark.long
def test_1000_corruptions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _try_corruptions(tmp_path, caplog, 1000)


def _leave_journal(store: Path, spans: int) -> Path:
    directory = journal_path(store)
    directory.mkdir()
    writer = SegmentWriter(directory, 1)
    for number in range(1, spans + 1):
        writer.append([encode_record(Signal.TRACES, 9, trace_request([span(number)]))])
    writer.close()
    return segment_path(directory, 1)


def test_a_reader_stores_what_is_behind_the_damage_and_keeps_the_segment(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _leave_journal(store, 20)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    with caplog.at_level(logging.WARNING):
        assert query_rows(store, "SELECT count(*) FROM spans") == [(19,)]

    assert "is damaged" in caplog.text
    kept = list(store.parent.glob("*.damaged"))
    assert [p.read_bytes() for p in kept] == [bytes(content)]
    assert not journal_path(store).exists()


def test_a_bit_in_the_header_of_a_segment_costs_nothing(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _leave_journal(store, 20)
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)

    with caplog.at_level(logging.WARNING):
        assert query_rows(store, "SELECT count(*) FROM spans") == [(20,)]
    assert "is damaged" in caplog.text


def test_a_segment_cut_between_two_records_is_noticed(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _leave_journal(store, 2)
    one_bytes = (path.stat().st_size - SEGMENT_HEADER_BYTES) // 2
    with path.open("r+b") as file:
        file.truncate(SEGMENT_HEADER_BYTES + one_bytes)

    with caplog.at_level(logging.WARNING):
        assert query_rows(store, "SELECT count(*) FROM spans") == [(1,)]
    assert "ends before its last acknowledged record" in caplog.text


def test_an_interrupted_write_is_not_called_damage(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed in the write: the record was never acknowledged, and nothing is kept for it."""
    path = _leave_journal(store, 2)
    with path.open("ab") as file:
        file.write(encode_record(Signal.TRACES, 9, trace_request([span(3)]))[:-1])

    with caplog.at_level(logging.WARNING):
        assert query_rows(store, "SELECT count(*) FROM spans") == [(2,)]
    assert caplog.messages == []
    assert list(store.parent.glob("*.damaged")) == []


def test_damage_is_said_once_and_not_a_thousand_times(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "s.duckdb.journal"
    directory.mkdir()
    writer = SegmentWriter(directory, 1)
    writer.append([encode_record(Signal.TRACES, 9, b"x" * 50) for _ in range(1000)])
    writer.close()
    path = segment_path(directory, 1)
    content = bytearray(path.read_bytes())
    record_bytes = (len(content) - SEGMENT_HEADER_BYTES) // 1000
    for number in range(0, 1000, 2):
        content[SEGMENT_HEADER_BYTES + number * record_bytes + 40] ^= 1
    path.write_bytes(content)

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert len(list(read_records(directory, 1, 0))) == 500
    assert 1 <= len(caplog.messages) <= 10
    assert list_segments(directory) == [1]


def test_a_journal_and_its_store_are_for_their_owner_only(tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    create_store(store)
    lock = JournalLock.try_take(journal_path(store), create=True)
    assert lock is not None
    SegmentWriter(lock.directory, 1).close()
    files = [store, lock.directory, *lock.directory.iterdir()]
    modes = {path.name: path.stat().st_mode & 0o077 for path in files}
    lock.release()
    assert set(modes.values()) == {0}, modes
