"""Stores whose ranks are cut off at times of their own: healthy only where no rank lacks steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rootwalk.graph.coverage import IN_FLIGHT_NS, IN_FLIGHT_STEPS
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from support.counters import Told, add_counters, add_event, growing
from support.jobs import HEALTHY_STEP_S, NS, START_UNIX_NS, Job, simulate, write_rows
from support.verdicts import check_verdict

SHAPES = [(1, 1), (2, 1), (4, 2), (8, 2)]
STEPS_S = [0.005, 0.12, 2.0]
COUNT = 60


def make_rows(ranks: int, hosts: int, step_s: float) -> list[dict[str, Any]]:
    """Return the rows of a healthy job with steps of another length."""
    factor = step_s / HEALTHY_STEP_S
    rows = simulate(Job(ranks=ranks, hosts=hosts, steps=COUNT, cold_s=0.0, jitter_ratio=0.01))
    for row in rows:
        for name in ("start_unix_ns", "end_unix_ns"):
            row[name] = START_UNIX_NS + round((row[name] - START_UNIX_NS) * factor)
        for name, value in row.items():
            if name.endswith("_ns") and "unix" not in name and value is not None:
                row[name] = round(value * factor)
    return rows


def last_steps(rows: list[dict[str, Any]]) -> dict[int, tuple[int, int]]:
    """Return number and end of the last complete step of each rank."""
    result: dict[int, tuple[int, int]] = {}
    for row in rows:
        if row["name"] == "training.rank_step":
            found = (row["step"], row["end_unix_ns"])
            result[row["rank"]] = max(result.get(row["rank"], found), found)
    return result


def solve(path: Path, rows: list[dict[str, Any]], end_s: float | None) -> Verdict:
    write_rows(path, rows)
    if end_s is not None:
        said = {"training.run.ended_by": "command", "process.exit.code": 0}
        add_event(path, "rootwalk.run.end", end_s, 0, None, said)
    return check_verdict(diagnose(path))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("has_end", [True, False])
def test_cut_ranks_are_never_healthy(tmp_path: Path, seed: int, has_end: bool) -> None:
    random = np.random.default_rng(seed)
    ranks, hosts = SHAPES[1 + seed % 3]
    step_s = STEPS_S[seed % len(STEPS_S)]
    rows = make_rows(ranks, hosts, step_s)
    cuts = {
        rank: START_UNIX_NS + round(float(random.uniform(0.5, 1.1)) * COUNT * step_s * NS)
        for rank in range(ranks)
    }
    kept = [row for row in rows if row["end_unix_ns"] <= cuts[row["rank"]]]
    steps = last_steps(kept)
    latest, latest_ns = max(steps.values())
    allowed_ns = max(IN_FLIGHT_STEPS * step_s * NS, IN_FLIGHT_NS)
    lacking = [
        rank
        for rank, (number, end_ns) in steps.items()
        if (number < latest if has_end else number < latest - IN_FLIGHT_STEPS)
        and (has_end or latest_ns - end_ns > allowed_ns * 1.01)
    ]
    end_s = COUNT * step_s + 1.0 if has_end else None
    verdict = solve(tmp_path / "s.duckdb", kept, end_s)
    if lacking:
        assert verdict.outcome != "healthy"
        assert any(item.code == "RANK_MISSING" for item in verdict.data_quality)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("has_end", [True, False])
def test_whole_jobs_are_healthy(
    tmp_path: Path, shape: tuple[int, int], step_s: float, has_end: bool
) -> None:
    rows = make_rows(*shape, step_s)
    end_s = COUNT * step_s + 1.0 if has_end else None
    assert solve(tmp_path / "s.duckdb", rows, end_s).outcome == "healthy"


def test_rank_and_time_are_named(tmp_path: Path) -> None:
    rows = [row for row in make_rows(4, 1, 2.0) if row["rank"] != 2 or row["step"] <= 39]
    verdict = solve(tmp_path / "s.duckdb", rows, None)
    (item,) = [one for one in verdict.data_quality if one.code == "RANK_MISSING"]
    assert item.text.startswith("rank 2 has no step after step 39, 4")


def test_rank_that_never_sent_anything_is_missing(tmp_path: Path) -> None:
    rows = [row for row in make_rows(4, 1, 0.12) if row["rank"] != 3]
    verdict = solve(tmp_path / "s.duckdb", rows, None)
    assert (verdict.outcome, verdict.data_quality[0].code) == (
        "insufficient_evidence",
        "RANK_MISSING",
    )


def test_job_whose_metrics_go_on_without_steps_is_not_healthy(tmp_path: Path) -> None:
    path, length_s = tmp_path / "s.duckdb", COUNT * 0.12
    write_rows(path, make_rows(2, 1, 0.12))
    told = Told("process.network.io", growing(1.0, 0.0), rank=0)
    add_counters(path, (told,), length_s)
    assert diagnose(path).outcome == "healthy"
    add_counters(path, (told,), length_s + 60.0)
    verdict = check_verdict(diagnose(path))
    assert verdict.outcome == "insufficient_evidence"
    assert any(item.code == "NO_PROGRESS" for item in verdict.data_quality)
