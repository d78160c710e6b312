"""CPUs that become slower than they were, told by the same little work at the end of steps: synthetic jobs in a store.

Rank 1 has two and a half times rank 0's work in its forward and backward passes; what changes does so at step 50 of
100 (see `support.jobs`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.text import render_text
from support.jobs import Job, simulate, write_rows
from support.verdicts import check_verdict

ONSET, UNEVEN, WORK_S = 50, 2.5, 16e-6
By = Callable[[int, int], float]


def verdict_of(folder: Path, longer: By, probe: By | None) -> Verdict:
    """Return what is said of a job.

    Args:
        folder: For its store.
        longer: By rank and step, how many times as long its work takes as before.
        probe: Likewise of the little work; below 0 where it is not done, None where nobody ever does it.
    """
    random = np.random.default_rng(5)

    def factor(step: int, rank: int, phase: str) -> float:
        uneven = UNEVEN if rank == 1 and phase != "optimizer" else 1.0
        return uneven * longer(rank, step)

    rows = simulate(Job("j1", steps=100, jitter_ratio=0.02, factor=factor))
    for row in rows:
        if row["name"] == "training.rank_step" and probe is not None:
            took_s = WORK_S * probe(row["rank"], row["step"]) * random.normal(1.0, 0.03)
            told = {"training.cpu.probe_time": took_s} if took_s > 0.0 else {}
            row["attributes"] = json.dumps(json.loads(row["attributes"]) | told)
    return check_verdict(diagnose(write_rows(folder / "store.duckdb", rows)))


def both(times: float) -> By:
    return lambda _, step: times if step >= ONSET else 1.0


def of_rank(number: int, times: float, others: float = 1.0) -> By:
    return lambda rank, step: (times if rank == number else others) if step >= ONSET else 1.0


def usual(_rank: int, _step: int) -> float:
    return 1.0


def named(verdict: Verdict) -> list[tuple[str, int | None]]:
    return [(one.reason, one.subject.rank) for one in verdict.findings]


@pytest.mark.parametrize("probe", [1.8, 1.65, 2.2])
def test_all_cpus_slower_is_nobodys_work(tmp_path: Path, probe: float) -> None:
    verdict = verdict_of(tmp_path, both(1.8), both(probe))
    assert named(verdict) == [("GLOBAL_SLOW", None)]
    text = " ".join(render_text(verdict).split())
    assert "all ranks: their CPUs are slower than before, no late arriver" in text
    assert "the same little work on its CPU" in text
    told = {row.signal: row for row in verdict.findings[0].evidence}["training.cpu.probe_time"]
    assert told.value == pytest.approx(WORK_S * probe, rel=0.05)
    assert told.history == pytest.approx(WORK_S, rel=0.05)


def test_without_the_work_it_is_not_known(tmp_path: Path) -> None:
    assert named(verdict_of(tmp_path, both(1.8), None))[0] == ("WORK_IMBALANCE", 1)


def test_told_of_one_rank_only_it_is_not_known_either(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, both(1.8), of_rank(0, 1.8, -1.0))
    assert named(verdict)[0] == ("WORK_IMBALANCE", 1)


def test_more_work_on_cpus_as_fast_as_before_is_the_ranks(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, of_rank(1, 1.8), usual)
    assert named(verdict) == [("WORK_IMBALANCE", 1)]


def test_more_work_on_slower_cpus_is_both(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, of_rank(1, 3.0, 1.3), both(1.3))
    assert ("WORK_IMBALANCE", 1) in named(verdict)
    assert {rank for _, rank in named(verdict)} <= {1, None}
    first = verdict.findings[0]
    assert (first.reason, first.subject.rank) == ("WORK_IMBALANCE", 1)


def test_one_slow_cpu_is_its_own(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, of_rank(1, 1.8), of_rank(1, 1.8))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("CPU_FREQ", 1)
    assert finding.seconds.share is not None
    assert finding.seconds.share == pytest.approx(
        (verdict.step_s or 0.0) - (verdict.healthy_step_s or 0.0), rel=0.1
    )


def test_a_cpu_that_was_slow_for_a_moment_is_not_told(tmp_path: Path) -> None:
    """As another guest of the machine makes it; it cost five healthy steps, and is over."""

    def slow(rank: int, step: int) -> float:
        return 1.8 if rank == 1 and ONSET <= step < ONSET + 7 else 1.0

    verdict = verdict_of(tmp_path, slow, slow)
    assert (verdict.outcome, named(verdict)) == ("insufficient_evidence", [])


@pytest.mark.parametrize("more", [1.0, 1.15])
def test_a_cpu_that_became_slow_just_now_is_not_told(tmp_path: Path, more: float) -> None:
    """It may be over as soon; a model's work slows down more than the little work does."""

    def slow(rank: int, step: int) -> float:
        return 1.6 if rank == 1 and step >= 88 else 1.0

    def longer(rank: int, step: int) -> float:
        return slow(rank, step) * (more if rank == 1 and step >= 88 else 1.0)

    verdict = verdict_of(tmp_path, longer, slow)
    assert (verdict.outcome, named(verdict)) == ("insufficient_evidence", [])
    other = tmp_path / "other"
    other.mkdir()
    assert named(verdict_of(other, longer, usual)) == [("WORK_IMBALANCE", 1)]


def slow_in_turn(rank: int, step: int) -> float:
    """Return how slow two CPUs are where the host lends less, of one in all steps, and of the other in two of five."""
    return 1.8 if step >= ONSET and (rank == 1 or step % 5 < 2) else 1.0


def test_cpus_that_are_slow_now_here_now_there_are_nobodys_work(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, slow_in_turn, slow_in_turn)
    assert named(verdict) == [("GLOBAL_SLOW", None)]


def test_who_has_more_to_do_has_it_though_others_do_at_times(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, slow_in_turn, usual)
    assert ("WORK_IMBALANCE", 1) in named(verdict)


def test_a_slow_cpu_is_not_all_that_a_rank_does_more(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, of_rank(1, 2.5), of_rank(1, 1.3))
    assert named(verdict)[0] == ("WORK_IMBALANCE", 1)


def test_a_cpu_that_was_slow_before_says_nothing(tmp_path: Path) -> None:
    def slow_at_times(rank: int, step: int) -> float:
        return 1.8 if rank == 1 and step % 3 == 0 else 1.0

    assert named(verdict_of(tmp_path, of_rank(1, 1.8), slow_at_times)) == [("WORK_IMBALANCE", 1)]
