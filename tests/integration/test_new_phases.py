"""Phases that a job begins to have, and what only looks like one: from synthetic jobs through a store to the cause.

The healthy step is 120 ms; a checkpoint comes before data_load (see `support.jobs`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from support.jobs import Fault, Job, simulate, write_rows
from support.verdicts import check_verdict, solve

STEPS, ONSET = 120, 60
CONTENTION = Fault("contention", 1, 0.060, ONSET)


def saves(
    rank: int, steps: range, seconds: float = 0.200, kind: str = "write"
) -> tuple[Fault, ...]:
    """Return one checkpoint of a rank in each of some steps."""
    return tuple(Fault(kind, rank, seconds, s, s, phase="checkpoint") for s in steps)


def named(verdict: Verdict) -> list[tuple[str, int | None]]:
    return [(finding.reason, finding.subject.rank) for finding in verdict.findings]


@pytest.mark.parametrize("jitter_ratio", [0.0, 0.05])
@pytest.mark.parametrize("every", [1, 3])
def test_a_checkpoint_that_history_does_not_know_is_named_with_its_seconds(
    tmp_path: Path, every: int, jitter_ratio: float
) -> None:
    faults = saves(1, range(ONSET, STEPS, every))
    verdict = solve(tmp_path, Job(steps=STEPS, faults=faults, jitter_ratio=jitter_ratio))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("CKPT_IO", 1)
    assert finding.seconds.share == pytest.approx(0.200 / every, rel=0.06)
    assert verdict.unexplained_s == pytest.approx(0.0, abs=0.005)
    assert verdict.victims.ranks == (0,)


def test_a_rare_checkpoint_before_is_no_reference_for_many(tmp_path: Path) -> None:
    faults = (*saves(1, range(30, 31)), *saves(1, range(ONSET, STEPS, 3)))
    assert named(solve(tmp_path, Job(steps=STEPS, faults=faults))) == [("CKPT_IO", 1)]


def test_what_a_checkpoint_computes_is_no_wait_for_files(tmp_path: Path) -> None:
    faults = saves(1, range(ONSET, STEPS, 3), kind="work")
    assert named(solve(tmp_path, Job(steps=STEPS, faults=faults))) == [("WORK_IMBALANCE", 1)]


def test_what_a_rank_alone_has_is_not_common_with_what_others_do_longer(tmp_path: Path) -> None:
    longer = Fault("work", 0, 0.012, ONSET, phase="forward")
    faults = (*saves(1, range(ONSET, STEPS, 3), kind="work"), longer)
    verdict = solve(tmp_path, Job(steps=STEPS, faults=faults))
    assert named(verdict) == [("WORK_IMBALANCE", 1), ("WORK_IMBALANCE", 0)]


def test_copying_is_part_of_a_checkpoint_that_waits_for_files(tmp_path: Path) -> None:
    rows = simulate(Job(steps=STEPS, faults=saves(1, range(ONSET, STEPS, 3))))
    for row in rows:
        if row["name"] in ("checkpoint", "training.rank_step") and "file_sync" in row["attributes"]:
            # 60 of the 200 ms on the CPU
            row["blocked_ns"] -= 60_000_000
            row["running_ns"] += 60_000_000
            row["attributes"] = row["attributes"].replace(
                '"doubleValue": 0.2', '"doubleValue": 0.14'
            )
    verdict = check_verdict(diagnose(write_rows(tmp_path / "store.duckdb", rows)))
    assert named(verdict) == [("CKPT_IO", 1)]
    assert verdict.findings[0].seconds.share == pytest.approx(0.200 / 3, rel=0.06)


def test_checkpoints_of_all_ranks_accuse_no_rank(tmp_path: Path) -> None:
    steps = range(ONSET, STEPS, 3)
    verdict = solve(tmp_path, Job(steps=STEPS, faults=saves(0, steps) + saves(1, steps)))
    assert named(verdict) == [("CKPT_IO", None)]


@pytest.mark.parametrize(
    "rare",
    [
        pytest.param(range(80, 81), id="one, by chance after the onset"),
        pytest.param(range(64, STEPS, 50), id="every fiftieth"),
        pytest.param(range(15, STEPS, 20), id="every twentieth, always"),
        pytest.param(range(2, STEPS, 3), id="every third, always"),
    ],
)
def test_checkpoints_that_the_job_may_always_have_had_are_not_accused(
    tmp_path: Path, rare: range
) -> None:
    job = Job(steps=STEPS, faults=(*saves(0, rare, 0.050), CONTENTION))
    assert named(solve(tmp_path, job)) == [("CPU_CONTENTION", 1)]


def renamed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """From the onset on rank 1 calls its forward another name."""
    for row in rows:
        if row["name"] == "forward" and row["rank"] == 1 and row["step"] >= ONSET:
            row["name"] = row["phase"] = "evaluation"
    return rows


def halved(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """From the onset on rank 1 tells its forward in two halves."""
    result = []
    for row in rows:
        if row["name"] != "forward" or row["rank"] != 1 or row["step"] < ONSET:
            result.append(row)
            continue
        middle_ns = (row["start_unix_ns"] + row["end_unix_ns"]) // 2
        half = {key: value // 2 for key, value in row.items() if value and key.endswith("ing_ns")}
        result.append({**row, **half, "end_unix_ns": middle_ns})
        span_id = row["span_id"][::-1]
        result.append({**row, **half, "start_unix_ns": middle_ns, "span_id": span_id})
    return result


def untold(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Before the onset rank 1 tells no phases."""
    return [
        row
        for row in rows
        if row["step"] >= ONSET or row["rank"] != 1 or row.get("phase") != row["name"]
    ]


@pytest.mark.parametrize("change", [renamed, halved, untold])
def test_phases_told_in_another_way_are_no_work(tmp_path: Path, change: Any) -> None:
    rows = change(simulate(Job(steps=STEPS, faults=(CONTENTION,))))
    verdict = check_verdict(diagnose(write_rows(tmp_path / "store.duckdb", rows)))
    assert {rank for _, rank in named(verdict)} <= {1}
    assert {reason for reason, _ in named(verdict)} <= {"CPU_CONTENTION"}


def test_a_phase_in_place_of_another_beside_a_checkpoint(tmp_path: Path) -> None:
    job = Job(steps=STEPS, faults=saves(1, range(ONSET, STEPS, 3)))
    rows = renamed(simulate(replace(job, jitter_ratio=0.05)))
    verdict = check_verdict(diagnose(write_rows(tmp_path / "store.duckdb", rows)))
    assert named(verdict) == [("CKPT_IO", 1)]
