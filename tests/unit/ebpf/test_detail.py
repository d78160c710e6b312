"""How much an agent tells: levels and budget on what they turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from rootwalk.ebpf.budget import LADDER
from rootwalk.ebpf.detail import MAX_STALLS_PER_STEP, Detail
from rootwalk.ebpf.rank_stream import RankStream
from rootwalk.ebpf.readers import Readers
from rootwalk.ebpf.scheduler import SchedulerReader
from rootwalk.ebpf.watched import WatchedRank
from support.rings import identity

LAST = len(LADDER) - 1


class FakeStream:
    def __init__(self) -> None:
        self.level = 1
        self.asked: list[int | None] = []
        self.steps = 0
        self.stalls_per_step: int | None = None
        self.traced: list[int] = []
        self.is_alive = self.has_lock = True

    def limit_stalls(self, per_step: int | None) -> None:
        self.stalls_per_step = per_step

    def ask_rank(self, level: int | None) -> None:
        self.asked.append(level)

    def ask_trace(self, steps: int) -> bool:
        if self.has_lock:
            self.traced.append(steps)
        return self.has_lock


class FakeScheduler:
    def __init__(self) -> None:
        self.levels: list[int] = []

    def set_level(self, level: int) -> None:
        self.levels.append(level)

    def run_time_ns(self) -> dict[str, int]:
        return {}

    def close(self) -> None: ...


def rank(number: int) -> tuple[WatchedRank, FakeStream]:
    stream = FakeStream()
    who = replace(identity(), rank=number)
    watched = WatchedRank(number + 1, 1000 + number, who, 5, None, None)
    watched.streams.append(cast("RankStream", stream))
    return watched, stream


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def detail(scheduler: FakeScheduler, tmp_path: Path) -> Iterator[Detail]:
    readers = Readers(scheduler=cast("SchedulerReader", scheduler))
    opened = Detail(1, 0.003, readers, tmp_path)
    yield opened
    opened.close()


def test_the_kernel_is_told_once_and_ranks_are_not_asked(
    detail: Detail, scheduler: FakeScheduler
) -> None:
    watched, stream = rank(0)
    detail.apply([watched])
    detail.apply([watched])
    assert scheduler.levels == [1]
    assert (stream.level, stream.asked) == (1, [None, None])


def test_the_kernel_follows_the_highest_level_and_streams_their_own(
    detail: Detail, scheduler: FakeScheduler
) -> None:
    (first, first_stream), (second, second_stream) = rank(0), rank(1)
    answer = detail._answer({"level": 2, "ranks": [1], "for_s": 60}, [first, second])
    assert scheduler.levels == [2]
    assert (first_stream.level, second_stream.level) == (1, 2)
    assert (first_stream.asked[-1], second_stream.asked[-1]) == (None, 2)
    stalls = (first_stream.stalls_per_step, second_stream.stalls_per_step)
    assert stalls == (MAX_STALLS_PER_STEP, None), "all of them at level 2 only"
    assert [one["level"] for one in answer["ranks"]] == [1, 2]
    assert answer["ranks"][0]["for_s"] is None
    assert 59.0 < answer["ranks"][1]["for_s"] <= 60.0
    assert detail.round_s == 0.5
    detail._answer({"level": 0}, [first, second])
    assert detail.round_s == 2.0
    assert (first_stream.level, second_stream.level) == (
        0,
        0,
    )  # for all and for good: ends the others
    assert scheduler.levels == [2, 0]


def test_without_a_level_it_only_tells(detail: Detail, scheduler: FakeScheduler) -> None:
    detail.note_cost({"cpu_s": 1.5})
    answer = detail._answer({}, [rank(3)[0]])
    assert (answer["pid"], answer["cost"], answer["limits"]) == (
        os.getpid(),
        {"cpu_s": 1.5, "rank_steps": 0},
        None,
    )
    assert [(one["rank"], one["level"], one["asked"]) for one in answer["ranks"]] == [(3, 1, 1)]
    assert scheduler.levels == []


@pytest.mark.parametrize(
    "request_",
    [
        {"level": 3},
        {"level": "1"},
        {"level": 1, "ranks": ["x"]},
        {"level": 1, "for_s": -1},
        {"level": 1, "profile_hz": 100},
        {"level": 1, "profile_hz": -1},
        {"level": 1, "profile_hz": True},
        {"level": 1, "profile_hz": "49"},
        {"level": 1, "for_s": "inf"},
        {"level": 2, "ranks": [1], "trace_steps": 0},
        {"level": 2, "ranks": [1], "trace_steps": 51},
        {"level": 2, "ranks": [1], "trace_steps": True},
        {"level": 2, "trace_steps": 3},
        {"level": 1, "ranks": [1], "trace_steps": 3},
    ],
)
def test_what_is_no_request_changes_nothing(
    detail: Detail, scheduler: FakeScheduler, request_: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"level|for_s|profile_hz|trace_steps|invalid literal"):
        detail._answer(request_, [])
    assert scheduler.levels == []


def test_a_trace_is_asked_of_the_named_ranks_once(detail: Detail) -> None:
    (first, first_stream), (second, second_stream), (gone, gone_stream) = (
        rank(number) for number in range(3)
    )
    gone_stream.is_alive = False
    request = {"level": 2, "ranks": [1, 2], "for_s": 60, "trace_steps": 5}
    answer = detail._answer(request, [first, second, gone])
    detail.apply([first, second, gone])
    assert answer["traced"] == [1]
    assert (first_stream.traced, second_stream.traced, gone_stream.traced) == ([], [5], [])
    second_stream.has_lock = False  # another agent's
    assert detail._answer(request, [first, second])["traced"] == []
    assert "traced" not in detail._answer({"level": 1}, [first, second])


def test_a_budget_that_is_exceeded_wins_over_what_was_asked(
    detail: Detail, scheduler: FakeScheduler
) -> None:
    watched, stream = rank(0)
    detail._answer({"level": 2}, [watched])
    detail._budget.rung = LAST
    detail.apply([watched])
    assert scheduler.levels == [2, 0]
    assert (stream.level, stream.asked[-1]) == (0, 0)
    answer = detail._answer({}, [watched])
    assert answer["limits"] == LADDER[LAST].text
    assert (answer["ranks"][0]["level"], answer["ranks"][0]["asked"]) == (0, 2)
    assert detail.round_s == LADDER[LAST].round_s


def test_steps_count_as_a_second_or_as_the_time_that_passed(detail: Detail) -> None:
    watched, stream = rank(0)
    detail._add_steps([watched], 2.0)
    assert detail._step_s == 0.0  # it has not trained
    stream.steps = 10
    detail._add_steps([watched], 2.0)
    assert detail._step_s == 10.0  # ten short ones
    detail._add_steps([watched], 2.0)
    assert detail._step_s == 12.0  # a long one goes on
