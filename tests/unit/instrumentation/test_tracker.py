"""Steps tile time; phases lie in them; collectives are numbered as PyTorch numbers them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.instrumentation.communicator import Communicator
from rootwalk.instrumentation.shared_ring import RecordFlag, RecordKind, Stage
from support.rings import Rank


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    made.close()


def steps(rank: Rank) -> list[tuple[int, int, int, int]]:
    return [
        (record.step, record.start_mono_ns, record.end_mono_ns, record.flags)
        for record in rank.records()
        if record.kind is RecordKind.STEP
    ]


def phases(rank: Rank) -> list[tuple[int, int | None, str, int, int]]:
    return [
        (record.step, record.index, record.name, record.start_mono_ns, record.end_mono_ns)
        for record in rank.records()
        if record.kind is RecordKind.PHASE
    ]


def test_steps_tile_time(rank: Rank) -> None:
    #  1000   1100    1300      1600  1700 | 1750    1800     2000      2300 2400
    #  data   forward backward  optim      | data    forward  backward  optim
    rank.phase("data_load", 1_000, 1_100)
    rank.phase("forward", 1_100, 1_300)
    rank.phase("backward", 1_300, 1_600)
    rank.phase("optimizer", 1_600, 1_700)
    rank.phase("data_load", 1_750, 1_800)
    rank.phase("forward", 1_800, 2_000)
    rank.phase("backward", 2_000, 2_300)
    rank.phase("optimizer", 2_300, 2_400)
    rank.tracker.close()
    assert steps(rank) == [(0, 1_000, 1_700, 0), (1, 1_700, 2_400, 0)]
    assert [phase[:3] for phase in phases(rank)] == [
        (step, index, name)
        for step in (0, 1)
        for index, name in enumerate(["data_load", "forward", "backward", "optimizer"])
    ]


def test_two_optimizers_are_one_step(rank: Rank) -> None:
    rank.phase("forward", 1_000, 1_100)
    rank.phase("backward", 1_100, 1_200)
    rank.phase("optimizer", 1_200, 1_300)
    rank.phase("optimizer", 1_310, 1_400)
    rank.phase("forward", 1_450, 1_500)
    rank.tracker.close()
    assert steps(rank)[0] == (0, 1_000, 1_400, 0)


def test_gradient_accumulation_is_one_step(rank: Rank) -> None:
    for start in (1_000, 1_200, 1_400):
        rank.phase("forward", start, start + 100)
        rank.phase("backward", start + 100, start + 200)
    rank.phase("optimizer", 1_600, 1_700)
    rank.tracker.close()
    assert steps(rank) == [(0, 1_000, 1_700, 0)]
    assert len(phases(rank)) == 7


def test_forward_is_derived_where_none_is_wrapped(rank: Rank) -> None:
    rank.phase("data_load", 1_000, 1_100)
    rank.phase("backward", 1_400, 1_600)
    assert phases(rank)[1] == (0, 1, "forward", 1_100, 1_400)


def test_optimizer_that_evaluates_a_closure(rank: Rank) -> None:
    rank.clock.now_ns = 1_000
    rank.tracker.begin_phase("optimizer")
    rank.phase("forward", 1_100, 1_200)
    rank.phase("backward", 1_200, 1_300)
    rank.clock.now_ns = 1_400
    rank.tracker.end_optimizer()
    rank.tracker.close()
    assert steps(rank)[-1][2] == 1_400


def test_optimizer_inside_the_backward_pass_ends_the_step_with_it(rank: Rank) -> None:
    rank.phase("forward", 1_000, 1_100)
    rank.clock.now_ns = 1_100
    rank.tracker.begin_phase("backward")
    assert not rank.tracker.begin_phase("optimizer")
    rank.tracker.end_optimizer()
    rank.clock.now_ns = 1_300
    rank.tracker.end_phase()
    rank.tracker.close()
    assert steps(rank) == [(0, 1_000, 1_300, 0)]


def test_nested_phases_count_once(rank: Rank) -> None:
    rank.clock.now_ns = 1_000
    rank.tracker.begin_phase("forward")
    assert not rank.tracker.begin_phase("forward")
    assert not rank.tracker.begin_phase("data_load")
    rank.tracker.end_phase()
    assert len(phases(rank)) == 1


def test_prefetching_thread_does_not_count(rank: Rank) -> None:
    rank.phase("forward", 1_000, 1_100)
    counted: list[bool] = []
    thread = threading.Thread(target=lambda: counted.append(rank.tracker.begin_phase("data_load")))
    thread.start()
    thread.join()
    assert counted == [False]


def test_rank_that_ends_in_a_step_says_so(rank: Rank) -> None:
    rank.phase("forward", 1_000, 1_100)
    rank.clock.now_ns = 1_500
    rank.tracker.close()
    assert steps(rank) == [(0, 1_000, 1_500, RecordFlag.INCOMPLETE)]


def test_collectives_are_numbered_from_one_and_point_to_point_apart(rank: Rank) -> None:
    group = Communicator(rank.tracker, "c0|2|gloo|default_pg")
    operations = [("all_reduce", False), ("send", True), ("barrier", False), ("recv", True)]
    for number, (name, is_p2p) in enumerate(operations):
        rank.clock.now_ns = 1_000 + 100 * number
        group.begin(number, name, 8, is_p2p=is_p2p)
        rank.clock.now_ns += 40
        group.end(number, is_known=not is_p2p)
    seen = [(r.name, r.sequence, r.end_mono_ns - r.start_mono_ns, r.flags) for r in rank.records()]
    p2p = RecordFlag.POINT_TO_POINT | RecordFlag.END_UNKNOWN
    assert seen == [
        ("all_reduce", 1, 40, 0),
        ("send", 1, 40, p2p),
        ("barrier", 2, 40, 0),
        ("recv", 2, 40, p2p),
    ]


def test_collective_belongs_to_the_phase_it_was_called_in(rank: Rank) -> None:
    group = Communicator(rank.tracker, "c0|2|gloo|default_pg")
    rank.phase("forward", 1_000, 1_100)
    rank.clock.now_ns = 1_100
    rank.tracker.begin_phase("backward")
    rank.clock.now_ns = 1_150
    group.begin(0, "all_reduce", 8, is_p2p=False)
    rank.clock.now_ns = 1_200
    rank.tracker.end_phase()
    rank.clock.now_ns = 1_250
    group.end(0, is_known=True)  # completes after the phase
    (record,) = [r for r in rank.records() if r.kind is RecordKind.COLLECTIVE]
    assert (record.index, record.phase, record.step) == (1, "backward", 0)


def test_the_open_phase_and_the_thread_that_runs_it_are_published(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    names = []
    assert rank.reader.training_thread is None

    def train() -> None:
        rank.tracker.begin_phase("forward")
        names.append(getattr(rank.reader.live_state(), "phase", None))
        rank.tracker.end_phase()
        names.append(getattr(rank.reader.live_state(), "phase", None))
        ids.append(threading.get_native_id())

    ids: list[int] = []
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert names == ["forward", ""]
    assert [rank.reader.training_thread] == ids
    assert ids != [threading.get_native_id()]
    rank.close()


def test_a_collective_before_the_first_phase_is_not_yet_training(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    stages = [rank.reader.stage]
    rank.tracker.begin_rendezvous()
    stages.append(rank.reader.stage)
    rank.tracker.end_rendezvous(is_made=True)
    rank.tracker.begin_collective()
    stages.append(rank.reader.stage)
    rank.phase("forward", 2_000, 3_000)
    stages.append(rank.reader.stage)
    rank.tracker.begin_rendezvous()  # a second default group, later
    rank.tracker.end_rendezvous(is_made=False)
    stages.append(rank.reader.stage)
    assert stages == [
        Stage.STARTED,
        Stage.RENDEZVOUS,
        Stage.INITIALISED,
        Stage.TRAINING,
        Stage.TRAINING,
    ]
    rank.close()
