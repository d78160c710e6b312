"""The same little work at the end of steps, from the clock to the record of the step it belongs to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.instrumentation.cpu_probe import PERIOD_NS, CpuProbe, time_work
from rootwalk.instrumentation.runtime import Runtime
from rootwalk.instrumentation.shared_ring import RecordKind
from support.rings import FakeClock, Rank


class RankRuntime(Runtime):
    """A runtime whose tracker the test made."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self._tracker = rank.tracker


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    made.close()


def update(rank: Rank, start_ns: int) -> None:
    rank.phase("backward", start_ns, start_ns + 100)
    rank.phase("optimizer", start_ns + 100, start_ns + 200)


def told(rank: Rank) -> list[int | None]:
    rank.tracker.close()
    return [one.probe_ns for one in rank.records() if one.kind is RecordKind.STEP]


def test_the_best_of_its_rounds_counts() -> None:
    ticks = itertools.accumulate(itertools.cycle([0, 900, 0, 500]))
    assert time_work(lambda: next(ticks)) == 500


def test_it_takes_cpu_time() -> None:
    assert 0 < time_work() < 5_000_000


def test_it_goes_with_the_step_that_has_ended(rank: Rank) -> None:
    rank.tracker.note_probe(7)  # before any step
    update(rank, 1_000)
    rank.tracker.note_probe(17_000)
    update(rank, 2_000)
    update(rank, 3_000)
    rank.tracker.note_probe(31_000)
    assert told(rank) == [17_000, None, 31_000]


def test_steps_that_follow_closely_have_one_between_them(rank: Rank) -> None:
    clock = FakeClock(PERIOD_NS)
    probe = CpuProbe(RankRuntime(rank), clock)
    for number, passed_ns in enumerate((0, PERIOD_NS - 1, 1, 2 * PERIOD_NS)):
        clock.now_ns += passed_ns
        update(rank, 1_000 * (number + 1))
        probe.look()
    assert [one is not None for one in told(rank)] == [True, False, True, True]


def test_a_process_that_is_no_rank_does_none(rank: Rank) -> None:
    runtime = Runtime()
    CpuProbe(runtime).look()
    runtime.switch_off()
    CpuProbe(runtime).look()
    assert runtime.failure is None
