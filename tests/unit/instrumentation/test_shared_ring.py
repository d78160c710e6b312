"""The ring: what one end writes the other reads, a full ring drops and counts, a lock lets one reader in."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rootwalk.instrumentation.clock import HostClock
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.instrumentation.ring_layout import SLOT_CAPACITY, LiveState, RecordFlag, RecordKind
from rootwalk.instrumentation.shared_ring import RingReader, RingWriter
from support.rings import Rank, identity


def test_reader_sees_what_was_written(tmp_path: Path) -> None:
    writer = RingWriter(identity(rank=1), tmp_path)
    reader = RingReader(writer.path)
    operation = writer.intern("all_reduce")
    communicator = writer.intern("c0|2|gloo|default_pg")
    backward = writer.intern("backward")
    writer.write(
        RecordKind.COLLECTIVE,
        100,
        250,
        7,
        flags=RecordFlag.POINT_TO_POINT,
        string=operation,
        index=2,
        sequence=88_121,
        size_bytes=26_214_400,
        communicator=communicator,
        phase=backward,
        root=3,
    )
    (record,) = reader.read()
    assert reader.identity == identity(rank=1)
    assert (record.kind, record.name, record.phase) == (3, "all_reduce", "backward")
    assert (record.start_mono_ns, record.end_mono_ns, record.step, record.index) == (100, 250, 7, 2)
    assert (record.sequence, record.size_bytes) == (88_121, 26_214_400)
    assert (record.communicator, record.root) == ("c0|2|gloo|default_pg", 3)
    assert record.flags & RecordFlag.POINT_TO_POINT
    reader.close()


def test_cursor_is_in_the_file_so_that_another_reader_goes_on(tmp_path: Path) -> None:
    writer = RingWriter(identity(), tmp_path)
    for step in range(10):
        writer.write(RecordKind.STEP, step, step + 1, step)
    first = RingReader(writer.path)
    assert [record.step for record in first.read(4)] == [0, 1, 2, 3]
    assert [record.step for record in first.read(4)] == [0, 1, 2, 3]  # reading does not move it
    first.advance(4)
    first.close()
    second = RingReader(writer.path)
    assert [record.step for record in second.read()] == [4, 5, 6, 7, 8, 9]
    second.close()


def test_full_ring_drops_the_new_and_counts(tmp_path: Path) -> None:
    writer = RingWriter(identity(), tmp_path)
    reader = RingReader(writer.path)
    total = SLOT_CAPACITY + 1_000
    kept = sum(writer.write(RecordKind.STEP, 0, 1, step) for step in range(total))
    assert kept + reader.dropped == total
    assert [record.step for record in reader.read(total)] == list(range(kept))
    reader.advance(kept)
    assert writer.write(RecordKind.STEP, 0, 1, 999_999)
    assert [record.step for record in reader.read()] == [999_999]
    reader.close()


def test_ring_goes_round(tmp_path: Path) -> None:
    writer = RingWriter(identity(), tmp_path)
    reader = RingReader(writer.path)
    seen = []
    for step in range(3 * SLOT_CAPACITY):
        writer.write(RecordKind.STEP, 0, 1, step)
        if step % 1_000 == 999:
            records = reader.read()
            seen += [record.step for record in records]
            reader.advance(len(records))
    seen += [record.step for record in reader.read()]
    assert seen == list(range(3 * SLOT_CAPACITY))
    assert reader.dropped == 0
    reader.close()


def test_one_reader_at_a_time(tmp_path: Path) -> None:
    writer = RingWriter(identity(), tmp_path)
    first, second = RingReader(writer.path), RingReader(writer.path)
    assert first.try_lock()
    assert not second.try_lock()
    first.close()  # as when it is killed
    assert second.try_lock()
    second.close()


def test_live_state(tmp_path: Path) -> None:
    writer = RingWriter(identity(), tmp_path)
    reader = RingReader(writer.path)
    assert reader.live_state() is None
    for state in (LiveState(3, 100, 1, 150, 0, 160), LiveState(3, 100, 1, 150, 0, 160, 40)):
        writer.set_live(state)
        assert reader.live_state() == state
    reader.close()


def test_clock_is_the_one_of_the_moment_in_which_the_ring_was_made(tmp_path: Path) -> None:
    # the wall clock jumps by an hour between two readers: the rank's times go on as they began
    writer = RingWriter(identity(), tmp_path, HostClock(offset_ns=-7_000, error_ns=20))
    first = RingReader(writer.path)
    first.close()
    second = RingReader(writer.path)
    assert first.clock == second.clock == HostClock(offset_ns=-7_000, error_ns=20)
    assert second.clock.unix_ns(10_000) == 3_000
    second.close()


def test_clock_is_read_when_the_ring_is_made(tmp_path: Path) -> None:
    reader = RingReader(RingWriter(identity(), tmp_path).path)
    error_ns = abs(reader.clock.unix_ns(time.monotonic_ns()) - time.time_ns())
    assert error_ns < 1_000_000_000
    reader.close()


def test_collection_time_goes_with_steps_and_phases_only(tmp_path: Path) -> None:
    writer = RingWriter(identity(), tmp_path)
    reader = RingReader(writer.path)
    forward = writer.intern("forward")
    writer.write(RecordKind.PHASE, 0, 9, 1, string=forward, index=0, gc_ns=5)
    writer.write(RecordKind.STEP, 0, 9, 1, gc_ns=0)
    writer.write(RecordKind.STEP, 0, 9, 2, probe_ns=16_400)
    writer.write(RecordKind.COLLECTIVE, 0, 9, 2, size_bytes=64, sequence=3)
    other = RecordFlag.OTHER_THREAD
    writer.write(RecordKind.GC, 2, 7, 2, flags=other, index=0, sequence=2, phase=forward)
    records = reader.read()
    assert [record.gc_ns for record in records] == [5, 0, None, None, None]
    assert [record.size_bytes for record in records] == [0, 0, 0, 64, 0]
    assert [record.probe_ns for record in records] == [None, None, 16_400, None, None]
    assert (records[4].name, records[4].sequence, records[4].phase) == ("", 2, "forward")
    reader.close()


def test_program_that_was_replaced_by_exec_leaves_its_last_step(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.phase("forward", 1_000, 1_400)
    rank.reader.supersede()
    assert rank.reader.is_superseded
    assert not rank.reader.closed
    assert [record.end_mono_ns for record in rank.reader.final_records()] == [1_400]
    rank.close()


def test_file_that_is_no_ring_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.ring"
    path.write_bytes(b"\0" * 2_000_000)
    with pytest.raises(DecodeError, match="cannot read ring"):
        RingReader(path)


def test_ring_of_another_version_is_refused(tmp_path: Path) -> None:
    made = RingWriter(identity(), tmp_path).path.read_bytes()
    path = tmp_path / "old.ring"
    for content in (b"RWRING2\0" + made[8:], b"RWRING2\0" + made[8:1_000_000]):
        path.write_bytes(content)
        with pytest.raises(DecodeError, match="needs a ring written by this version"):
            RingReader(path)


def test_file_is_private(tmp_path: Path) -> None:
    assert RingWriter(identity(), tmp_path).path.stat().st_mode & 0o077 == 0


def test_strings_beyond_the_table_do_no_harm(tmp_path: Path) -> None:
    writer = RingWriter(identity(), tmp_path)
    numbers = [writer.intern(f"operation {number}") for number in range(300)]
    assert max(numbers) == 255
    assert writer.intern("x" * 500 + "é") <= 255


def test_rank_that_died_leaves_its_last_steps(tmp_path: Path) -> None:
    # step 0: [1000, 1500), its update done at 1500; killed before anything else began
    rank = Rank(tmp_path)
    rank.phase("backward", 1_000, 1_400)
    rank.phase("optimizer", 1_400, 1_500)
    (done,) = rank.reader.final_records()
    assert (done.step, done.start_mono_ns, done.end_mono_ns, done.flags) == (0, 1_000, 1_500, 0)
    # ... or in the middle of step 1
    rank.phase("backward", 1_600, 1_700)
    (cut,) = rank.reader.final_records()
    assert (cut.step, cut.start_mono_ns, cut.end_mono_ns) == (1, 1_500, 1_700)
    assert cut.flags == RecordFlag.INCOMPLETE
    # ... while one that ended by itself wrote them
    rank.tracker.close()
    assert rank.reader.final_records() == []
    rank.close()
