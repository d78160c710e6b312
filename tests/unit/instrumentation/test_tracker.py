"""Steps tile time; phases lie in them; collectives are numbered as PyTorch numbers them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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


def at(rank: Rank, now_ns: int) -> Rank:
    rank.clock.now_ns = now_ns
    return rank


def test_optimizer_that_evaluates_a_closure(rank: Rank) -> None:
    """As Lightning does: all passes of a step are inside of its optimiser's update."""
    for start in (1_000, 2_000):
        rank.phase("data_load", start, start + 50)
        at(rank, start + 60).tracker.begin_phase("optimizer")
        rank.phase("forward", start + 100, start + 200)
        rank.phase("backward", start + 210, start + 300)
        at(rank, start + 400).tracker.end_optimizer()
    rank.tracker.close()
    assert steps(rank) == [(0, 1_000, 1_400, 0), (1, 1_400, 2_400, 0)]
    of_first = [phase[1:] for phase in phases(rank) if phase[0] == 0]
    assert of_first == [
        (0, "data_load", 1_000, 1_050),
        (1, "forward", 1_100, 1_200),
        (2, "backward", 1_210, 1_300),
        (3, "optimizer", 1_300, 1_400),
    ]


def test_closure_without_a_wrapped_forward_pass_has_a_derived_one(rank: Rank) -> None:
    rank.phase("data_load", 1_000, 1_050)
    at(rank, 1_060).tracker.begin_phase("optimizer")
    rank.phase("backward", 1_200, 1_300)
    at(rank, 1_400).tracker.end_optimizer()
    rank.tracker.close()
    assert [phase[1:3] for phase in phases(rank)] == [
        (0, "data_load"),
        (1, "forward"),
        (2, "backward"),
        (3, "optimizer"),
    ]
    assert phases(rank)[1][3:] == (1_050, 1_200)


def test_closure_that_is_evaluated_often_is_one_step(rank: Rank) -> None:
    """As with L-BFGS."""
    for start in (1_000, 2_000):
        at(rank, start).tracker.begin_phase("optimizer", 7)
        for turn in range(3):
            rank.phase("forward", start + 100 * turn, start + 100 * turn + 40)
            rank.phase("backward", start + 100 * turn + 50, start + 100 * turn + 90)
        at(rank, start + 400).tracker.end_optimizer(7)
    rank.tracker.close()
    assert steps(rank) == [(0, 1_000, 1_400, 0), (1, 1_400, 2_400, 0)]


def test_update_inside_another_one_is_no_step(rank: Rank) -> None:
    """As optimisers do that wrap one; the first update here has raised."""
    at(rank, 900).tracker.begin_phase("optimizer", 1)
    for start in (1_000, 2_000):
        rank.phase("backward", start, start + 100)
        at(rank, start + 110).tracker.begin_phase("optimizer", 1)
        at(rank, start + 120).tracker.begin_phase("optimizer", 2)
        at(rank, start + 130).tracker.end_optimizer(2)
        at(rank, start + 140).tracker.end_optimizer(1)
    rank.tracker.close()
    assert [step[1:3] for step in steps(rank)] == [(900, 1_140), (1_140, 2_140)]


def test_update_that_raised_does_not_hide_those_of_another_optimizer(rank: Rank) -> None:
    at(rank, 900).tracker.begin_phase("optimizer", 1)
    for start in range(1_000, 6_000, 1_000):
        rank.phase("backward", start, start + 100)
        at(rank, start + 110).tracker.begin_phase("optimizer", 2)
        at(rank, start + 140).tracker.end_optimizer(2)
    rank.tracker.close()
    assert [step[2] for step in steps(rank) if not step[3]][-3:] == [3_140, 4_140, 5_140]


def train_in_turn(rank: Rank, order: str) -> list[int]:
    """Let optimisers update in turn, each with its own passes; return when each step began and ended, in turns."""
    for turn, name in enumerate(order):
        start = 1_000 + 100 * turn
        rank.phase("forward", start, start + 20)
        rank.phase("backward", start + 20, start + 50)
        at(rank, start + 50).tracker.begin_phase("optimizer", ord(name))
        at(rank, start + 90).tracker.end_optimizer(ord(name))
    rank.tracker.close()
    return [(step[2] - 1_090) // 100 for step in steps(rank) if not step[3]]


@pytest.mark.parametrize(
    ("order", "ends"),
    [
        pytest.param("DGDGDGDG", [0, 2, 4, 6], id="a generator and its discriminator"),
        pytest.param("ABCABCABC", [0, 3, 6], id="three in turn"),
        pytest.param("CCCGCCCGCCC", [0, 1, 2, 4, 5, 6, 8, 9, 10], id="three critics for each"),
        pytest.param("AAABBBAA", [0, 1, 2, 4, 5, 7], id="one after another"),
        pytest.param("AAAA", [0, 1, 2, 3], id="one"),
    ],
)
def test_optimizers_in_turn_make_one_step_a_turn(rank: Rank, order: str, ends: list[int]) -> None:
    assert train_in_turn(rank, order) == ends


def in_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


@pytest.mark.parametrize("name", ["checkpoint", "evaluation", "data_load", "forward", "backward"])
def test_phase_of_another_thread_is_not_on_the_rank_s_timeline(rank: Rank, name: str) -> None:
    """As of a checkpoint that is written in the background."""
    at(rank, 1_000).tracker.begin_phase("forward")
    counted: list[bool] = []
    in_thread(lambda: counted.append(rank.tracker.begin_phase(name)))
    at(rank, 1_100)
    in_thread(rank.tracker.end_phase)
    at(rank, 1_200).tracker.end_phase()
    rank.phase("backward", 1_200, 1_300)
    in_thread(lambda: rank.phase(name, 1_310, 1_390))
    rank.phase("optimizer", 1_400, 1_500)
    rank.tracker.close()
    assert counted == [False]
    assert [phase[2:] for phase in phases(rank)] == [
        ("forward", 1_000, 1_200),
        ("backward", 1_200, 1_300),
        ("optimizer", 1_400, 1_500),
    ]
    assert steps(rank) == [(0, 1_000, 1_500, 0)]


def test_thread_that_only_loaded_data_is_not_the_one_that_trains(rank: Rank) -> None:
    in_thread(lambda: rank.phase("data_load", 900, 950))
    rank.phase("backward", 1_000, 1_100)
    rank.phase("optimizer", 1_100, 1_200)
    rank.tracker.close()
    assert [step[2] for step in steps(rank)] == [1_200]


def test_training_that_goes_on_in_another_thread_is_followed(rank: Rank) -> None:
    def train(first: int, last: int) -> None:
        for start in range(first, last, 1_000):
            rank.phase("backward", start, start + 100)
            rank.phase("optimizer", start + 100, start + 200)

    train(1_000, 3_000)
    in_thread(lambda: train(3_000, 8_000))
    rank.tracker.close()
    assert [step[2] for step in steps(rank)][-3:] == [5_200, 6_200, 7_200]


def test_updates_on_the_device_s_threads_end_with_the_backward_pass(rank: Rank) -> None:
    def update() -> None:
        for key in range(4):
            rank.tracker.begin_phase("optimizer", key)
            rank.tracker.end_optimizer(key)

    for start in (1_000, 2_000, 3_000):
        at(rank, start).tracker.begin_phase("backward")
        in_thread(update)
        at(rank, start + 300).tracker.end_phase()
    rank.tracker.close()
    assert [step[2] for step in steps(rank)] == [1_300, 2_300, 3_300]


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
