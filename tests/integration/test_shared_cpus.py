"""Ranks of one host that share CPUs: from synthetic jobs through a real store to who is named, and who is not.

Rank 0 and rank 1 stand 12 ms behind each other in each healthy step of 120 ms, where nothing else is said; what is
added begins at step 60 of 100 (see `support.jobs`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.model import Verdict
from support.jobs import AGGRESSOR_PID, Fault, Job
from support.verdicts import solve

ONSET, USUAL_S, MORE_S = 60, 0.012, 0.040


def behind_each_other(seconds: float, first_step: int = 0) -> tuple[Fault, ...]:
    """Return each rank's wait for a CPU on which the other runs."""
    return tuple(
        Fault(
            "contention", rank, seconds, first_step, phase="forward", pid=1001 - rank, name="python"
        )
        for rank in (0, 1)
    )


def verdict_of(tmp_path: Path, *faults: Fault, hosts: int = 1) -> Verdict:
    job = Job("j1", steps=100, hosts=hosts, faults=faults, jitter_ratio=0.02)
    return solve(tmp_path, job)


def named(verdict: Verdict) -> list[tuple[str, int | None]]:
    return [(one.reason, one.subject.rank) for one in verdict.findings]


def test_a_queue_that_was_always_there_accuses_no_rank_when_it_grows(tmp_path: Path) -> None:
    grown = behind_each_other(MORE_S, ONSET)
    verdict = verdict_of(tmp_path, *behind_each_other(USUAL_S), *grown)
    assert named(verdict) == [("GLOBAL_SLOW", None)]
    # Nobody runs for longer: what is told is the queue.
    (finding,) = verdict.findings
    told = {one.signal: one.value for one in finding.evidence}
    assert told["training.thread.runnable_time"] == pytest.approx(MORE_S, rel=0.1)


def test_nor_do_its_own_threads_that_stand_in_it(tmp_path: Path) -> None:
    grown = behind_each_other(MORE_S, ONSET)
    own = tuple(Fault("own", rank, MORE_S / 2, ONSET, phase="optimizer") for rank in (0, 1))
    verdict = verdict_of(tmp_path, *behind_each_other(USUAL_S), *grown, *own)
    assert named(verdict) == [("GLOBAL_SLOW", None)]


def test_own_threads_that_cost_more_than_the_queue_are_named(tmp_path: Path) -> None:
    own = Fault("own", 1, MORE_S, ONSET, phase="optimizer")
    verdict = verdict_of(tmp_path, *behind_each_other(USUAL_S), own)
    assert named(verdict) == [("THREAD_OVERSUBSCRIPTION", 1)]


def test_a_stranger_in_the_queue_is_named(tmp_path: Path) -> None:
    stranger = Fault("contention", 1, MORE_S, ONSET, phase="optimizer")
    grown = behind_each_other(MORE_S / 8, ONSET)
    verdict = verdict_of(tmp_path, *behind_each_other(USUAL_S), *grown, stranger)
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("CPU_CONTENTION", 1)
    assert finding.subject.aggressor is not None
    assert finding.subject.aggressor.pid == AGGRESSOR_PID


def test_a_rank_that_works_more_is_named_and_not_who_stands_behind_it(tmp_path: Path) -> None:
    work = Fault("work", 1, MORE_S, ONSET, phase="optimizer")
    queue = Fault("contention", 0, MORE_S, ONSET, phase="optimizer", pid=1001, name="python")
    verdict = verdict_of(tmp_path, *behind_each_other(USUAL_S), work, queue)
    assert named(verdict)[0] == ("WORK_IMBALANCE", 1)
    assert 0 not in [rank for _, rank in named(verdict)]


@pytest.mark.parametrize(
    ("usual_s", "hosts"),
    [(0.0, 1), (0.001, 1), (USUAL_S, 2)],
    ids=["no queue", "short", "two hosts"],
)
def test_a_rank_that_came_to_a_cpu_of_another_is_contention(
    tmp_path: Path, usual_s: float, hosts: int
) -> None:
    came = Fault("contention", 0, MORE_S, ONSET, phase="forward", pid=1001, name="python")
    verdict = verdict_of(tmp_path, *behind_each_other(usual_s), came, hosts=hosts)
    assert named(verdict) == [("CPU_CONTENTION", 0)]
