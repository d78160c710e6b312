"""Compilations, evaluations and retries of the allocator, as hooks tell them, in the ring of a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rootwalk.instrumentation.program_spans import program_span
from rootwalk.instrumentation.program_watch import (
    AllocatorWatch,
    CompilationWatch,
    EvaluationWatch,
)
from rootwalk.instrumentation.runtime import Runtime
from rootwalk.instrumentation.shared_ring import Record, RecordKind
from rootwalk.instrumentation.tracker import StepTracker
from support.rings import Rank


class TestRuntime(Runtime):
    """A runtime whose tracker the test made."""

    __test__ = False

    def __init__(self, made: StepTracker | None) -> None:
        super().__init__()
        self._tracker = made


class Parameter:
    """A weight, frozen or not."""

    def __init__(self, *, requires_grad: bool) -> None:
        self.requires_grad = requires_grad


class Model:
    """What a module is to the watch."""

    def __init__(self, *, is_trained: bool = True) -> None:
        self._weights = [Parameter(requires_grad=False), Parameter(requires_grad=is_trained)]

    def parameters(self) -> list[Parameter]:
        return self._weights


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    made.close()


@pytest.fixture
def runtime(rank: Rank) -> TestRuntime:
    return TestRuntime(rank.tracker)


def step(rank: Rank, start: int) -> None:
    """Run one step of 300 ns."""
    rank.phase("forward", start, start + 100)
    rank.phase("backward", start + 100, start + 200)
    rank.phase("optimizer", start + 200, start + 300)


def told(rank: Rank, kind: RecordKind) -> list[Record]:
    return [record for record in rank.records() if record.kind is kind]


def phases(rank: Rank) -> list[tuple[int, str, int, int]]:
    return [(r.step, r.name, r.start_mono_ns, r.end_mono_ns) for r in told(rank, RecordKind.PHASE)]


def at(rank: Rank, now_ns: int, action: Callable[[], Any]) -> None:
    rank.clock.now_ns = now_ns
    action()


def test_nested_compilations_are_one(rank: Rank, runtime: TestRuntime) -> None:
    # forward 1000 |--- compile 1010 [ 1020 1030 ] 1090 ---| 1100
    watch = CompilationWatch(runtime)
    at(rank, 1_000, lambda: rank.tracker.begin_phase("forward"))
    for now, action in ((1_010, watch.begin), (1_020, watch.begin), (1_030, watch.end)):
        at(rank, now, action)
    at(rank, 1_090, watch.end)
    at(rank, 1_100, rank.tracker.end_phase)
    (record,) = told(rank, RecordKind.COMPILATION)
    assert (record.start_mono_ns, record.end_mono_ns) == (1_010, 1_090)
    assert (record.step, record.index, record.phase) == (0, 0, "forward")


def test_a_compilation_between_steps_belongs_to_the_step_that_needs_it(
    rank: Rank, runtime: TestRuntime
) -> None:
    step(rank, 1_000)
    watch = CompilationWatch(runtime)
    at(rank, 1_310, watch.begin)
    at(rank, 1_350, watch.end)
    (record,) = told(rank, RecordKind.COMPILATION)
    assert (record.step, record.index, record.phase) == (1, None, "")


def test_a_process_that_is_no_rank_tells_nothing() -> None:
    runtime = TestRuntime(None)
    watch = CompilationWatch(runtime)
    watch.begin()
    watch.end()
    EvaluationWatch(runtime).switched(Model(), was_training=True, is_training=False)
    AllocatorWatch(runtime, lambda: 1).look()
    assert runtime.is_active


def test_an_evaluation_is_from_the_switch_to_the_switch_back(
    rank: Rank, runtime: TestRuntime
) -> None:
    watch, model = EvaluationWatch(runtime), Model()
    step(rank, 1_000)
    at(rank, 1_400, lambda: watch.switched(model, was_training=True, is_training=False))
    rank.phase("data_load", 1_410, 1_420)  # the evaluation's
    rank.phase("forward", 1_420, 1_450)
    at(rank, 1_500, lambda: watch.switched(model, was_training=False, is_training=True))
    rank.phase("data_load", 1_510, 1_520)
    assert phases(rank)[-2:] == [(1, "evaluation", 1_400, 1_500), (1, "data_load", 1_510, 1_520)]


def test_an_evaluation_that_nobody_ends_ends_with_the_next_backward_pass(
    rank: Rank, runtime: TestRuntime
) -> None:
    watch, model = EvaluationWatch(runtime), Model()
    step(rank, 1_000)
    at(rank, 1_400, lambda: watch.switched(model, was_training=True, is_training=False))
    rank.phase("backward", 1_600, 1_700)
    rank.phase("optimizer", 1_700, 1_800)
    step(rank, 1_900)
    names = [(number, name) for number, name, *_ in phases(rank)]
    assert (1, "evaluation") in names
    assert names[-3:] == [(2, "forward"), (2, "backward"), (2, "optimizer")]


@pytest.mark.parametrize(
    ("is_trained", "has_stepped", "was_training"),
    [(False, True, True), (True, False, True), (True, True, False)],
    ids=["a frozen model", "before the first step", "a model that was not in training"],
)
def test_what_is_no_evaluation_of_the_model_that_is_trained(
    rank: Rank, runtime: TestRuntime, is_trained: bool, has_stepped: bool, was_training: bool
) -> None:
    if has_stepped:
        step(rank, 1_000)
    model = Model(is_trained=is_trained)
    watch = EvaluationWatch(runtime)
    at(rank, 1_400, lambda: watch.switched(model, was_training=was_training, is_training=False))
    rank.phase("data_load", 1_510, 1_520)
    assert phases(rank)[-1][1] == "data_load"


def test_another_model_s_switch_back_ends_nothing(rank: Rank, runtime: TestRuntime) -> None:
    watch, model, other = EvaluationWatch(runtime), Model(), Model()
    step(rank, 1_000)
    at(rank, 1_400, lambda: watch.switched(model, was_training=True, is_training=False))
    at(rank, 1_450, lambda: watch.switched(other, was_training=False, is_training=True))
    at(rank, 1_500, lambda: watch.switched(model, was_training=False, is_training=True))
    assert phases(rank)[-1] == (1, "evaluation", 1_400, 1_500)


def test_retries_are_those_of_the_step_that_ended(rank: Rank, runtime: TestRuntime) -> None:
    counts = iter((5, 5, 8))
    watch = AllocatorWatch(runtime, lambda: next(counts))
    for start in (1_000, 2_000, 3_000):
        step(rank, start)
        watch.look()
    (record,) = told(rank, RecordKind.RETRIES)
    assert (record.step, record.sequence) == (2, 3)
    assert (record.start_mono_ns, record.end_mono_ns) == (2_300, 3_300)


def test_an_allocator_that_cannot_be_asked_is_not_asked_again(
    rank: Rank, runtime: TestRuntime
) -> None:
    asked: list[None] = []

    def count() -> int:
        asked.append(None)
        raise RuntimeError("another allocator")

    watch = AllocatorWatch(runtime, count)
    step(rank, 1_000)
    watch.look()
    watch.look()
    assert (len(asked), runtime.is_active) == (1, True)


def test_there_is_no_span_of_another_kind() -> None:
    assert set(RecordKind) == {
        RecordKind.STEP,
        RecordKind.PHASE,
        RecordKind.COLLECTIVE,
        RecordKind.GC,
        RecordKind.COMPILATION,
        RecordKind.RETRIES,
    }
    assert callable(program_span)
