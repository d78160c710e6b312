"""Stores of jobs that ended badly, ran on hosts with other clocks, or share their id: a verdict of what was seen.

All jobs have 60 ms of trouble on one rank from step 60 on; what is damaged comes after or on top of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Band
from rootwalk.graph.render.text import render_text
from support.jobs import NS, Fault, Job, simulate, write_job, write_rows
from support.verdicts import check_verdict, solve

ONSET, FAULT_S = 60, 0.060
WATCHED = Job(steps=100, loader_s=0.020, gc_s=0.001, has_cgroup=True, jitter_ratio=0.02)
CONTENDED = replace(WATCHED, faults=(Fault("contention", 1, FAULT_S, ONSET),))
STATES = (
    "running_ns",
    "runnable_ns",
    "runnable_foreign_ns",
    "runnable_own_ns",
    "runnable_idle_ns",
    "blocked_ns",
    "loader_running_ns",
    "blocked_loader_running_ns",
    "throttled_ns",
    "sensor",
)
Rows = list[dict[str, Any]]


def last_step_is_missing_on_one_rank(rows: Rows) -> Rows:
    return [r for r in rows if not (r["rank"] == 0 and r["step"] == 99)]


def last_step_is_not_complete(rows: Rows) -> Rows:
    for row in rows:
        if row["name"] == "training.rank_step" and row["step"] == 99:
            row["outcome"] = "incomplete"
    return rows


def last_step_has_no_step_span(rows: Rows) -> Rows:
    return [r for r in rows if not (r["name"] == "training.rank_step" and r["step"] == 99)]


def one_rank_ends_early(rows: Rows) -> Rows:
    return [r for r in rows if not (r["rank"] == 0 and r["step"] > 85)]


def the_late_rank_ends_early(rows: Rows) -> Rows:
    return [r for r in rows if not (r["rank"] == 1 and r["step"] > 85)]


def nobody_watched(rows: Rows, steps: range) -> Rows:
    kept = [r for r in rows if not (r["name"].startswith("stall.") and r["step"] in steps)]
    for row in kept:
        if row["step"] in steps:
            row.update(dict.fromkeys(STATES))
    return kept


def agent_was_gone_in_history(rows: Rows) -> Rows:
    return nobody_watched(rows, range(20, 40))


def agent_came_late(rows: Rows) -> Rows:
    return nobody_watched(rows, range(58))


def steps_were_lost_in_history(rows: Rows) -> Rows:
    return [r for r in rows if r["step"] not in range(30, 35)]


def steps_were_lost_in_the_window(rows: Rows) -> Rows:
    return [r for r in rows if not (r["step"] in range(80, 84) and r["rank"] == 0)]


@pytest.mark.parametrize(
    ("damage", "last_step"),
    [
        (last_step_is_missing_on_one_rank, 98),
        (last_step_is_not_complete, 98),
        (last_step_has_no_step_span, 98),
        (one_rank_ends_early, 85),
        (the_late_rank_ends_early, 85),
        (agent_was_gone_in_history, 99),
        (agent_came_late, 99),
        (steps_were_lost_in_history, 99),
        (steps_were_lost_in_the_window, 99),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_rank_and_the_cause_are_named_from_what_is_left(
    tmp_path: Path, damage: Callable[[Rows], Rows], last_step: int
) -> None:
    path = write_rows(tmp_path / "s.duckdb", damage(simulate(CONTENDED)))
    verdict = check_verdict(diagnose(path))
    first = verdict.findings[0]
    assert (first.reason, first.subject.rank) == ("CPU_CONTENTION", 1)
    assert first.seconds.share == pytest.approx(FAULT_S, abs=0.006)
    assert verdict.window.last_step == last_step


def test_time_in_which_nobody_watched_is_not_guessed(tmp_path: Path) -> None:
    # 10 of 40 slow steps without an agent: a quarter of the seconds has no cause that anybody saw.
    rows = nobody_watched(simulate(CONTENDED), range(70, 80))
    verdict = check_verdict(diagnose(write_rows(tmp_path / "s.duckdb", rows)))
    assert [(f.reason, f.subject.rank) for f in verdict.findings] == [
        ("CPU_CONTENTION", 1),
        ("UNKNOWN_HOST", 1),
    ]
    shares = [f.seconds.share for f in verdict.findings]
    assert shares == pytest.approx([0.75 * FAULT_S, 0.25 * FAULT_S], abs=0.004)


def test_the_latest_attempt_is_diagnosed(tmp_path: Path) -> None:
    again = replace(WATCHED, attempt=1, faults=(Fault("gc", 0, FAULT_S, ONSET, phase="forward"),))
    path = write_rows(tmp_path / "s.duckdb", simulate(CONTENDED) + simulate(again))
    verdict = check_verdict(diagnose(path))
    assert verdict.job.attempt == 1
    assert [(f.reason, f.subject.rank) for f in verdict.findings] == [("PY_GC", 0)]


@pytest.mark.parametrize("steps", [0, 3, 12])
def test_an_attempt_with_few_steps_says_so(tmp_path: Path, steps: int) -> None:
    again = [
        {**row, "outcome": None if steps == 0 else row["outcome"]}
        for row in simulate(replace(WATCHED, attempt=1, steps=max(steps, 1)))
    ]
    path = write_rows(tmp_path / "s.duckdb", simulate(CONTENDED) + again)
    verdict = check_verdict(diagnose(path))
    assert (verdict.job.attempt, verdict.outcome) == (1, "insufficient_evidence")
    assert render_text(verdict).startswith("not enough evidence: ")


TROUBLES = {
    "contention": ("CPU_CONTENTION", Fault("contention", 2, FAULT_S, ONSET)),
    "gc": ("PY_GC", Fault("gc", 2, 0.1, ONSET, phase="forward", probability=0.5)),
    "quota": ("CPU_QUOTA", Fault("quota", 2, FAULT_S, ONSET)),
    "decode": ("DATALOADER_CPU", Fault("decode", 2, FAULT_S, ONSET, phase="data_load")),
    "held up": (
        "CPU_CONTENTION",
        Fault("loader_contention", 2, FAULT_S, ONSET, phase="data_load"),
    ),
}


@pytest.mark.parametrize(
    "skew_s",
    [
        (0.0, 5.0),
        pytest.param((0.0, 0.050), marks=pytest.mark.variant),
        pytest.param((-5.0, 0.0), marks=pytest.mark.variant),
    ],
)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_clock_of_a_host_changes_nothing(
    tmp_path: Path, trouble: str, skew_s: tuple[float, float]
) -> None:
    reason, fault = TROUBLES[trouble]
    job = replace(WATCHED, ranks=4, hosts=2, faults=(fault,))
    (tmp_path / "skewed").mkdir()
    straight = solve(tmp_path, job)
    skewed = solve(tmp_path / "skewed", replace(job, skew_s=skew_s))
    (left,), (right,) = straight.findings, skewed.findings
    assert (left.id, left.reason, left.subject) == (right.id, reason, right.subject)
    assert (right.subject.rank, right.subject.host) == (2, "host-1")
    assert right.seconds.share == pytest.approx(left.seconds.share or 0.0, rel=0.02)
    assert skewed.unexplained_s == pytest.approx(straight.unexplained_s, abs=1e-3)
    assert skewed.window.slow_steps == straight.window.slow_steps
    assert render_text(skewed).startswith("rank 2 (host-1")


def test_a_rank_of_two_processes_is_never_accused_with_confidence(tmp_path: Path) -> None:
    # Two jobs of one name, both two ranks: ids are derived from rank and step, so the first span of a pair is kept.
    mixed = simulate(CONTENDED)
    other = {(r["name"], r["rank"], r["step"]): r for r in simulate(WATCHED)}
    draw = np.random.default_rng(1)
    stolen = {(rank, step) for rank in (0, 1) for step in range(100) if draw.random() < 0.3}
    rows: Rows = []
    for row in mixed:
        twin = other.get((row["name"], row["rank"], row["step"]))
        if (row["rank"], row["step"]) in stolen and twin is not None:
            moved = {n: twin[n] + NS // 10 for n in ("start_unix_ns", "end_unix_ns")}
            row = {**twin, **moved, "pid": 3000 + row["rank"]}
        rows.append(row)
    verdict = check_verdict(diagnose(write_rows(tmp_path / "s.duckdb", rows)))
    assert "DUPLICATE_RANK" in {item.code for item in verdict.data_quality}
    assert {f.confidence.band for f in verdict.findings} <= {Band.LOW}


def test_two_processes_that_tell_the_same_are_still_two(tmp_path: Path) -> None:
    rows = simulate(CONTENDED)
    for row in rows:
        if row["rank"] == 1 and row["step"] >= 50:
            row["pid"] = 3001
    verdict = check_verdict(diagnose(write_rows(tmp_path / "s.duckdb", rows)))
    (item,) = verdict.data_quality
    assert (item.code, item.count) == ("DUPLICATE_RANK", 1)
    assert "rank 1 by 2" in item.text
    assert [f.confidence.band for f in verdict.findings] == [Band.LOW]
    single = diagnose(write_job(tmp_path / "one.duckdb", CONTENDED))
    assert [f.confidence.band for f in single.findings] == [Band.HIGH]
