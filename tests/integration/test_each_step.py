"""`rootwalk diagnose --each-step`: a verdict for every step of a window, as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph import cli
from support.jobs import Fault, Job, write_job
from support.progress_reports import stuck_job, waiting
from support.stores import query_rows
from support.verdicts import check_schema

FIRST, LAST, PERIOD, SHARE_S = 60, 71, 3, 0.15


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every third step of one rank is slow from step 60 on."""
    fault = Fault("contention", 1, SHARE_S, FIRST, period=PERIOD)
    job = Job(ranks=4, steps=100, faults=(fault,))
    return write_job(tmp_path_factory.mktemp("each") / "s.duckdb", job)


def lines_of(
    store: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> list[dict[str, Any]]:
    assert cli.main(["diagnose", str(store), "--each-step", *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_step_has_its_own_verdict(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = lines_of(store, capsys, "--steps", f"{FIRST}:{LAST}")
    steps = range(FIRST, LAST + 1)
    assert [one["window"]["first_step"] for one in verdicts] == list(steps)
    assert [one["window"]["last_step"] for one in verdicts] == list(steps)
    for step, verdict in zip(steps, verdicts, strict=True):
        check_schema(verdict)
        named = [(one["reason"], one["subject"]["rank"]) for one in verdict["findings"]]
        is_slow = (step - FIRST) % PERIOD == 0
        assert named == ([("CPU_CONTENTION", 1)] if is_slow else []), step
        if is_slow:
            share_s = verdict["findings"][0]["seconds"]["share"]
            assert share_s == pytest.approx(SHARE_S, rel=0.1)


def test_the_store_keeps_the_findings_of_the_window(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    window = ["--steps", f"{FIRST}:{FIRST + 2}"]
    assert cli.main(["diagnose", str(store), *window]) == 0
    wanted = query_rows(store, "SELECT id, reason, rank FROM findings ORDER BY ALL")
    assert wanted
    capsys.readouterr()
    assert len(lines_of(store, capsys, *window)) == 3
    assert query_rows(store, "SELECT id, reason, rank FROM findings ORDER BY ALL") == wanted


def test_what_cannot_be_said_of_each_step_is_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["diagnose", str(store), "--each-step", "--format", "markdown"]) == 2
    assert "needs JSON lines" in capsys.readouterr().err
    without = stuck_job(tmp_path / "s.duckdb", [waiting(), waiting()])
    assert cli.main(["diagnose", str(without), "--each-step"]) == 2
    assert "saw none in this job" in capsys.readouterr().err
