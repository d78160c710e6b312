"""Collections: what they cost the main thread, where they fall, and what may happen in the middle of them."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.instrumentation import gc_watch
from rootwalk.instrumentation.gc_watch import GcWatch
from rootwalk.instrumentation.shared_ring import Record, RecordFlag, RecordKind
from support.rings import Rank

MS = 1_000_000


@pytest.fixture(autouse=True)
def no_callback_stays() -> Iterator[None]:
    before = list(gc.callbacks)
    yield
    assert gc.callbacks == before


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    """A rank whose interpreter collects only when the test says so."""
    gc.disable()
    made = Rank(tmp_path)
    made.watch.install()
    yield made
    made.close()
    gc.enable()


def of_kind(rank: Rank, kind: RecordKind) -> list[Record]:
    return [record for record in rank.records() if record.kind is kind]


def test_collections_belong_to_the_phase_and_step_they_ran_in(rank: Rank) -> None:
    #  10 ms     20          30    32  34     40       50
    #  | forward | 2 ms gc | backward [3 ms] | optimizer |
    rank.phase("forward", 10 * MS, 20 * MS)
    rank.collect(21 * MS, 23 * MS)
    rank.clock.now_ns = 30 * MS
    rank.tracker.begin_phase("backward")
    rank.collect(32 * MS, 35 * MS)
    rank.clock.now_ns = 40 * MS
    rank.tracker.end_phase()
    rank.phase("optimizer", 40 * MS, 50 * MS)
    rank.collect(52 * MS, 56 * MS)  # after the update: the next step's
    rank.phase("forward", 60 * MS, 70 * MS)
    rank.tracker.close()

    phases = [(r.step, r.name, r.gc_ns) for r in of_kind(rank, RecordKind.PHASE)]
    assert phases == [
        (0, "forward", 0),
        (0, "backward", 3 * MS),
        (0, "optimizer", 0),
        (1, "forward", 0),
    ]
    assert [(r.step, r.gc_ns) for r in of_kind(rank, RecordKind.STEP)] == [(0, 5 * MS), (1, 4 * MS)]
    collections = of_kind(rank, RecordKind.GC)
    assert [(r.step, r.index, r.phase, r.start_mono_ns // MS) for r in collections] == [
        (0, None, "", 21),
        (0, 1, "backward", 32),
        (1, None, "", 52),
    ]
    assert [(r.sequence, r.flags, r.name) for r in collections] == [(2, 0, "")] * 3


def test_short_collections_are_in_the_sum_only(rank: Rank) -> None:
    rank.clock.now_ns = 10 * MS
    rank.tracker.begin_phase("forward")
    for start in (11, 12, 13):
        rank.collect(start * MS, start * MS + 400_000)
    rank.clock.now_ns = 20 * MS
    rank.tracker.end_phase()

    (phase,) = of_kind(rank, RecordKind.PHASE)
    assert phase.gc_ns == 1_200_000
    assert of_kind(rank, RecordKind.GC) == []


def test_time_in_which_the_collector_did_not_run_is_not_its_own(rank: Rank) -> None:
    rank.clock.now_ns = 10 * MS
    rank.tracker.begin_phase("forward")
    rank.collect(11 * MS, 19 * MS, cpu_ns=5 * MS)  # 3 ms of it another process had the CPU
    rank.clock.now_ns = 20 * MS
    rank.tracker.end_phase()

    assert [r.gc_ns for r in of_kind(rank, RecordKind.PHASE)] == [5 * MS]
    (collection,) = of_kind(rank, RecordKind.GC)
    assert collection.end_mono_ns - collection.start_mono_ns == 8 * MS


def test_another_threads_collection_is_told_and_not_summed(rank: Rank) -> None:
    rank.clock.now_ns = 10 * MS
    rank.tracker.begin_phase("forward")
    thread = threading.Thread(target=rank.collect, args=(11 * MS, 13 * MS))
    thread.start()
    thread.join()
    rank.clock.now_ns = 20 * MS
    rank.tracker.end_phase()

    assert [r.gc_ns for r in of_kind(rank, RecordKind.PHASE)] == [0]
    assert [r.flags for r in of_kind(rank, RecordKind.GC)] == [RecordFlag.OTHER_THREAD]


def test_forward_that_is_derived_has_its_collections(rank: Rank) -> None:
    rank.phase("data_load", 10 * MS, 20 * MS)
    rank.collect(21 * MS, 23 * MS)
    rank.phase("backward", 30 * MS, 40 * MS)

    phases = [(r.name, r.gc_ns) for r in of_kind(rank, RecordKind.PHASE)]
    assert phases == [("data_load", 0), ("forward", 2 * MS), ("backward", 0)]
    assert [(r.index, r.phase) for r in of_kind(rank, RecordKind.GC)] == [(1, "forward")]


def test_callback_that_another_library_removes_makes_the_time_unknown(rank: Rank) -> None:
    rank.phase("forward", 10 * MS, 20 * MS)
    gc.callbacks.pop()  # ours; other libraries in this process need theirs
    rank.phase("backward", 20 * MS, 30 * MS)
    rank.phase("optimizer", 30 * MS, 40 * MS)
    rank.tracker.close()

    assert [r.gc_ns for r in of_kind(rank, RecordKind.PHASE)] == [0, None, None]
    assert [r.gc_ns for r in of_kind(rank, RecordKind.STEP)] == [None]
    rank.watch.remove()  # does not mind


def test_stop_without_a_start_is_nothing(rank: Rank) -> None:
    (callback,) = gc.callbacks[-1:]
    callback("stop", {"generation": 0})
    assert rank.watch.main_cpu_ns == 0


def test_more_collections_than_can_wait_are_dropped_and_counted(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc_watch, "MAX_WAITING", 3)
    rank.clock.now_ns = 10 * MS
    rank.tracker.begin_phase("forward")
    for start in range(11, 16):
        rank.collect(start * MS, (start + 1) * MS)
    rank.clock.now_ns = 20 * MS
    rank.tracker.end_phase()

    assert len(of_kind(rank, RecordKind.GC)) == 3
    assert rank.reader.dropped == 2
    assert [r.gc_ns for r in of_kind(rank, RecordKind.PHASE)] == [5 * MS]


def test_collection_between_the_two_readings_of_a_mark_counts_on_one_side(tmp_path: Path) -> None:
    """The interpreter may collect whenever something is made, also inside the hooks."""
    rank = Rank(tmp_path)
    rank.watch.install()
    rank.phase("forward", 10 * MS, 20 * MS)
    reads = iter([30 * MS, 35 * MS])

    def now_with_a_collection() -> int:
        time_ns = next(reads)
        if time_ns == 30 * MS:
            rank.collect(30 * MS, 34 * MS)
        return time_ns

    rank.tracker.now = now_with_a_collection
    rank.tracker.begin_phase("backward")
    rank.tracker.now = rank.clock
    rank.clock.now_ns = 40 * MS
    rank.tracker.end_phase()
    backward = of_kind(rank, RecordKind.PHASE)[-1]
    rank.close()
    assert (backward.start_mono_ns, backward.gc_ns) == (35 * MS, 0)


def test_collecting_at_every_moment_corrupts_no_record(tmp_path: Path) -> None:
    """The real interpreter with a threshold of 1 collects inside the hooks and inside a write into the ring."""
    rank = Rank(tmp_path)
    rank.watch.install()
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for step in range(300):
            start = (10 + 40 * step) * MS
            rank.phase("forward", start, start + 10 * MS)
            rank.phase("backward", start + 10 * MS, start + 20 * MS)
            rank.phase("optimizer", start + 20 * MS, start + 30 * MS)
    finally:
        gc.set_threshold(*threshold)
    rank.tracker.close()
    phases, steps = of_kind(rank, RecordKind.PHASE), of_kind(rank, RecordKind.STEP)
    dropped = rank.reader.dropped
    rank.close()
    assert [(r.step, r.index) for r in phases] == [(s, i) for s in range(300) for i in range(3)]
    assert [r.step for r in steps] == list(range(300))
    assert dropped == 0


def test_real_collection_is_seen(tmp_path: Path) -> None:
    watch = GcWatch()
    watch.install()
    heap = [[number] for number in range(200_000)]
    gc.collect()
    watch.remove()
    seen = watch.take_before(1 << 62)
    assert len(heap) == 200_000
    assert watch.main_cpu_ns > 0
    assert all(one.is_main and one.end_mono_ns > one.start_mono_ns for one in seen)
    before = watch.main_cpu_ns
    gc.collect()
    assert watch.main_cpu_ns == before


def test_installing_twice_counts_once() -> None:
    watch = GcWatch()
    watch.install()
    watch.install()
    watch.remove()
    assert not watch.is_installed


def test_forked_child_of_a_watching_process_may_collect(tmp_path: Path) -> None:
    watch = GcWatch()
    watch.install()
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(0)
    watch.remove()
    assert os.waitpid(child, 0)[1] == 0
