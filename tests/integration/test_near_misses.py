"""Synthetic jobs in which nothing may be accused, or nobody but the culprit: what only looks like a fault.

The healthy step is 120 ms (see `support.jobs`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.render.text import render_text
from support.jobs import Fault, Job, simulate, write_rows
from support.spinning import let_spin
from support.verdicts import solve

FAULT_S = 0.060


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(Job(jitter_ratio=0.1), id="jitter"),
        pytest.param(
            Job(extra_s={0: 0.005}, faults=(Fault("contention", 1, 0.005, 40),)),
            id="hidden by slack",
        ),
        pytest.param(Job(faults=(Fault("contention", 1, 0.004, 0),)), id="the same before"),
        pytest.param(Job(spikes=(30, 45, 60), spike_s=0.1), id="spikes"),
        pytest.param(Job(steps=200, spikes=tuple(range(5, 200, 10)), spike_s=0.05), id="periodic"),
        pytest.param(Job(steps=200, drift_ratio=0.05), id="drift"),
        pytest.param(Job(faults=(Fault("contention", 1, 0.005, 40),)), id="below the noise floor"),
    ],
)
def test_near_misses_are_healthy(tmp_path: Path, job: Job) -> None:
    verdict = solve(tmp_path, job)
    assert verdict.outcome == "healthy"
    assert verdict.findings == ()
    assert render_text(verdict).startswith("healthy: ")


def test_work_that_was_always_there_now_and_then_is_not_accused(tmp_path: Path) -> None:
    # rank 0 evaluates for 0.2 s every tenth step, before and after rank 1 is disturbed
    every_tenth = tuple(
        Fault("work", 0, 0.2, step, step, phase="forward") for step in range(9, 90, 10)
    )
    contention = Fault("contention", 1, FAULT_S, 40)
    verdict = solve(tmp_path, Job(steps=90, faults=(*every_tenth, contention)))
    assert [(f.reason, f.subject.rank) for f in verdict.findings] == [("CPU_CONTENTION", 1)]


def test_without_the_ends_of_collectives_nobody_is_accused(tmp_path: Path) -> None:
    # as on GPUs: the host sees when a collective was enqueued and not when it completed, and its threads spin
    rows = simulate(Job(faults=(Fault("contention", 1, FAULT_S, 40),)))
    for row in rows:
        if row["name"].startswith("collective."):
            row["end_unix_ns"] = row["start_unix_ns"] + 1_000
            row["attributes"] = json.dumps({"collective.is_end_known": False})
    verdict = diagnose(write_rows(tmp_path / "store.duckdb", let_spin(rows)))
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())
    assert "MISSING_EDGE" in {item.code for item in verdict.data_quality}


@pytest.mark.parametrize("extra_s", [0.0, 0.020])
def test_without_the_ends_of_collectives_a_quiet_job_is_healthy(
    tmp_path: Path, extra_s: float
) -> None:
    # who waits for whom is not known there, so that what ranks differ by says nothing against the job's own history
    rows = simulate(Job(ranks=4, extra_s={1: extra_s}, jitter_ratio=0.05))
    for row in rows:
        if row["name"].startswith("collective."):
            row["end_unix_ns"] = row["start_unix_ns"] + 1_000
            row["attributes"] = json.dumps({"collective.is_end_known": False})
    verdict = diagnose(write_rows(tmp_path / "store.duckdb", let_spin(rows)))
    assert (verdict.outcome, verdict.findings) == ("healthy", ())


def test_ranks_that_count_their_steps_differently_are_not_accused(tmp_path: Path) -> None:
    # rank 1 has an optimiser of its own besides: its step numbers run ahead of its collectives
    rows = simulate(Job(faults=(Fault("contention", 1, FAULT_S, 40),)))
    for row in rows:
        if row["rank"] == 1 and row["name"].startswith("collective."):
            row["sequence"] += 1_000
    verdict = diagnose(write_rows(tmp_path / "store.duckdb", rows))
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())
    assert "UNEQUAL_MEMBERS" in {item.code for item in verdict.data_quality}


def test_communicators_of_a_size_that_nobody_knows_lack_no_member(tmp_path: Path) -> None:
    rows = simulate(Job(faults=(Fault("contention", 1, FAULT_S, 40),)))
    for row in rows:
        if row["name"].startswith("collective."):
            row["communicator_size"] = None
    verdict = diagnose(write_rows(tmp_path / "store.duckdb", rows))
    assert "UNEQUAL_MEMBERS" not in {item.code for item in verdict.data_quality}
    assert [(f.reason, f.subject.rank) for f in verdict.findings] == [("CPU_CONTENTION", 1)]


def test_a_short_job_is_compared_with_its_peers(tmp_path: Path) -> None:
    verdict = solve(tmp_path, Job(steps=12, faults=(Fault("contention", 1, FAULT_S, 0),)))
    assert verdict.healthy_from == "peers"
    assert (verdict.findings[0].reason, verdict.findings[0].subject.rank) == ("CPU_CONTENTION", 1)


@pytest.mark.parametrize("steps", [2, 4])
def test_a_few_steps_are_told_with_low_confidence(tmp_path: Path, steps: int) -> None:
    verdict = solve(tmp_path, Job(steps=steps, faults=(Fault("contention", 1, FAULT_S, 0),)))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("CPU_CONTENTION", 1)
    assert finding.confidence.band == "low"


def test_a_short_job_of_equal_ranks_says_nothing(tmp_path: Path) -> None:
    verdict = solve(tmp_path, Job(steps=12))
    assert verdict.outcome == "insufficient_evidence"
