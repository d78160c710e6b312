"""A rank that comes to the CPU of another: who is named, by the waits of both and by what is told of their masks.

    steps   200 of 122 ms | 200 of 160 ms and more        from about 24 s on

Before, each waits 2 ms a step for the CPU of its own number (see `support.jobs`); then both wait for CPU 0.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Finding, Verdict
from support.counters import Told, add_counters, growing, level
from support.jobs import Fault, Job, write_job
from support.verdicts import check_verdict

ONSET, MORE_S, LENGTH_S = 200, 0.040, 65.0
ONSET_S = ONSET * 0.122
MAIN = {"training.thread.role": "main"}
USUAL = tuple(
    Fault("contention", rank, 0.002, 0, phase="data_load", pid=77, name="kdamond")
    for rank in (0, 1)
)
# Rank 0 behind rank 1, where rank 0 always was, and rank 1 behind rank 0 there.
MUTUAL = (
    Fault("contention", 0, MORE_S, ONSET, phase="forward", pid=1001, name="python", cpu=0),
    Fault("contention", 1, MORE_S, ONSET, phase="optimizer", pid=1000, name="python", cpu=0),
)
HOG = Fault("contention", 1, MORE_S, ONSET, phase="forward")
IDLE = Told("system.cpu.time", growing(1.0, -70.0), 0, None, {"cpu.mode": "idle"})
BUSY = Told("system.cpu.time", growing(0.01, -70.0), 0, None, {"cpu.mode": "idle"})
Value = Callable[[float], float]


def shared(value: Value, name: str = "training.cpu.allowed.shared_cores") -> tuple[Told, ...]:
    """What is told of both ranks alike."""
    attributes = MAIN if name == "training.cpu.allowed" else {}
    return tuple(Told(name, value, 0, rank, attributes) for rank in (0, 1))


def allowed(before: float, after: float) -> tuple[Told, ...]:
    """The mask of rank 1 changes, that of rank 0 does not."""
    return (
        Told("training.cpu.allowed", level(before, before, 0.0), 0, 0, MAIN),
        Told("training.cpu.allowed", level(before, after, ONSET_S), 0, 1, MAIN),
    )


COMES = shared(level(0.0, 1.0, ONSET_S))


def verdict_of(folder: Path, faults: tuple[Fault, ...], told: tuple[Told, ...] = ()) -> Verdict:
    path = write_job(folder / "store.duckdb", Job(ranks=2, steps=2 * ONSET, faults=faults))
    add_counters(path, told, LENGTH_S)
    return check_verdict(diagnose(path))


def only(verdict: Verdict) -> Finding:
    (finding,) = verdict.findings
    return finding


def test_the_rank_whose_mask_was_moved_is_named_with_the_seconds_of_both(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, (*USUAL, *MUTUAL), (*COMES, IDLE))
    finding = only(verdict)
    assert (finding.reason, finding.subject.rank) == ("CPU_AFFINITY", 1)
    assert verdict.step_s is not None
    assert verdict.healthy_step_s is not None
    lost_s = verdict.step_s - verdict.healthy_step_s
    assert finding.seconds.share == pytest.approx(lost_s, rel=0.1)


def test_and_by_a_mask_that_shrank(tmp_path: Path) -> None:
    finding = only(verdict_of(tmp_path, (*USUAL, *MUTUAL), (*allowed(8.0, 1.0), IDLE)))
    assert (finding.reason, finding.subject.rank) == ("CPU_AFFINITY", 1)


@pytest.mark.parametrize(
    "told",
    [
        (),
        COMES,
        (*COMES, BUSY),
        (*shared(level(1.0, 1.0, 0.0)), IDLE),
        (*shared(level(0.0, 1.0, ONSET_S / 3)), IDLE),
        (*shared(level(0.0, 1.0, 1.6 * ONSET_S)), IDLE),
        (*allowed(8.0, 8.0), IDLE),
    ],
    ids=["not told", "idle not told", "none idle", "from the start", "before", "late", "same"],
)
def test_without_a_changed_mask_and_an_idle_cpu_it_is_contention(
    tmp_path: Path, told: tuple[Told, ...]
) -> None:
    finding = only(verdict_of(tmp_path, (*USUAL, *MUTUAL), told))
    assert (finding.reason, finding.subject.rank) == ("CPU_CONTENTION", 1)


@pytest.mark.parametrize(
    "told", [COMES, allowed(1.0, 1.0)], ids=["shares a core since", "pinned from the start"]
)
def test_a_hog_on_the_cpu_of_a_rank_that_did_not_move_is_contention(
    tmp_path: Path, told: tuple[Told, ...]
) -> None:
    finding = only(verdict_of(tmp_path, (*USUAL, HOG), (*told, IDLE)))
    assert (finding.reason, finding.subject.rank) == ("CPU_CONTENTION", 1)


def test_a_mask_that_shrinks_to_a_stranger_s_cpu_is_the_cause(tmp_path: Path) -> None:
    finding = only(verdict_of(tmp_path, (*USUAL, HOG), (*allowed(8.0, 1.0), IDLE)))
    assert (finding.reason, finding.subject.rank) == ("CPU_AFFINITY", 1)


def test_a_rank_bound_anew_at_no_cost_is_not_named(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, USUAL, (*COMES, *allowed(8.0, 1.0), IDLE))
    assert verdict.outcome == "healthy"


def test_nobody_has_come_where_both_stood_on_that_cpu_before(tmp_path: Path) -> None:
    there = Fault("contention", 1, 0.002, 0, phase="data_load", pid=77, name="kdamond", cpu=0)
    verdict = verdict_of(tmp_path, (USUAL[0], there, *MUTUAL), (*COMES, IDLE))
    assert {one.reason for one in verdict.findings} == {"CPU_CONTENTION"}
