"""Time that is lost from the first step on, or every so many steps: history has it too, peers and threads show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from support.jobs import HEALTHY_STEP_S, Fault, Job, write_job

# What the thread goes through, and the reason that it speaks for.
REASONS = {
    "contention": "CPU_CONTENTION",
    "work": "WORK_IMBALANCE",
    "stopped": "PROCESS_SUSPENDED",
    "gc": "PY_GC",
    "quota": "CPU_QUOTA",
    "reclaim": "MEM_RECLAIM",
}


def _extra_s(share: float, period: int = 1) -> float:
    """Return how much longer every so many steps take where that is so much of the job's time."""
    return share / (1.0 - share) * HEALTHY_STEP_S * period


def _diagnose(tmp_path: Path, job: Job) -> Verdict:
    return diagnose(write_job(tmp_path / "s.duckdb", job))


def _names(verdict: Verdict) -> list[tuple[str, int | None]]:
    return [(one.reason, one.subject.rank) for one in verdict.findings]


@pytest.mark.parametrize("kind", REASONS)
@pytest.mark.parametrize(
    ("ranks", "onset", "share", "seed"), [(2, 0, 0.1, 1), (4, 3, 0.2, 2), (8, 0, 0.07, 3)]
)
def test_a_rank_that_is_slow_from_the_start_is_named(
    tmp_path: Path, kind: str, ranks: int, onset: int, share: float, seed: int
) -> None:
    rank = (seed + 1) % ranks
    job = Job(
        ranks=ranks,
        steps=120,
        faults=(Fault(kind, rank, _extra_s(share), onset),),
        jitter_ratio=0.1,
        seed=seed,
        gc_s=0.0,
        has_cgroup=True,
    )
    verdict = _diagnose(tmp_path, job)
    assert _names(verdict) == [(REASONS[kind], rank)]
    found = verdict.findings[0]
    assert found.seconds.share == pytest.approx(_extra_s(share), rel=0.3)
    assert verdict.healthy_from == "peers"
    assert found.onset is not None
    assert found.onset.step in (1, 2, 3)


@pytest.mark.parametrize("kind", ["contention", "work", "stopped", "gc"])
@pytest.mark.parametrize("period", [2, 3, 5, 12, 50, 100])
def test_what_comes_every_so_many_steps_is_named(tmp_path: Path, kind: str, period: int) -> None:
    job = Job(
        steps=max(5 * period + 40, 120),
        faults=(Fault(kind, 1, _extra_s(0.1, period), period // 2, period=period),),
        jitter_ratio=0.1,
        seed=period,
        gc_s=0.0,
    )
    verdict = _diagnose(tmp_path, job)
    assert _names(verdict) == [(REASONS[kind], 1)]


@pytest.mark.parametrize("kind", ["contention", "quota", "reclaim", "read"])
def test_time_that_all_ranks_lose_alike_is_named_by_what_they_lose_it_to(
    tmp_path: Path, kind: str
) -> None:
    faults = tuple(
        Fault(kind, rank, 0.03, 0, phase="data_load" if kind == "read" else "backward")
        for rank in range(4)
    )
    job = Job(ranks=4, steps=100, faults=faults, jitter_ratio=0.1, gc_s=0.0, has_cgroup=True)
    verdict = _diagnose(tmp_path, job)
    reason = {"read": "DATALOADER_IO"}.get(kind) or REASONS[kind]
    assert {one.reason for one in verdict.findings} == {reason}
    total_s = sum(one.seconds.share or 0.0 for one in verdict.findings)
    assert total_s == pytest.approx(0.03, rel=0.3)


@pytest.mark.parametrize(
    ("ranks", "jitter", "seed", "spikes"),
    [(2, 0.1, 1, ()), (2, 0.3, 2, ()), (8, 0.2, 3, ()), (4, 0.1, 4, (40, 41, 90))],
)
def test_equal_ranks_are_healthy(
    tmp_path: Path, ranks: int, jitter: float, seed: int, spikes: tuple[int, ...]
) -> None:
    job = Job(ranks=ranks, steps=200, jitter_ratio=jitter, seed=seed, spikes=spikes, spike_s=0.2)
    verdict = _diagnose(tmp_path, job)
    assert (verdict.outcome, _names(verdict)) == ("healthy", [])


def test_one_burst_names_nobody(tmp_path: Path) -> None:
    job = Job(steps=120, faults=(Fault("contention", 1, 0.3, 90, 91),), jitter_ratio=0.1)
    assert _names(_diagnose(tmp_path, job)) == []


@pytest.mark.parametrize("period", [5, 12, 50])
def test_a_mean_far_above_the_usual_step_is_never_healthy(tmp_path: Path, period: int) -> None:
    # Work of the program's own on all ranks accuses nobody.
    fault = Fault("uniform", 0, _extra_s(0.12, period), 0, period=period)
    job = Job(steps=max(5 * period + 40, 120), faults=(fault,), jitter_ratio=0.1, seed=period)
    verdict = _diagnose(tmp_path, job)
    assert verdict.outcome == "insufficient_evidence"
    assert verdict.known
    assert verdict.step_s is not None
    assert verdict.healthy_step_s is not None
    assert verdict.step_s > 1.05 * verdict.healthy_step_s


def test_a_rank_with_a_little_more_to_do_is_not_named(tmp_path: Path) -> None:
    job = Job(ranks=4, steps=120, extra_s={2: 0.004}, jitter_ratio=0.1)
    verdict = _diagnose(tmp_path, job)
    assert (verdict.outcome, _names(verdict)) == ("healthy", [])
