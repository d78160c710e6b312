"""A slow job whose agent tells less of the later steps: those that were told whole say what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.otel_receiver import store
from support.jobs import Fault, Job, write_job
from support.verdicts import check_verdict

STEPS, ONSET, ADDED_S = 90, 60, 0.06


def write(folder: Path, since: int, *ranks: int) -> Path:
    """Write a job of which some ranks tell no collectives from some step on."""
    job = Job(steps=STEPS, faults=(Fault("contention", 1, ADDED_S, ONSET),), jitter_ratio=0.02)
    path = write_job(folder / "store.duckdb", job)
    with store.writing(path) as connection:
        for rank in ranks:
            connection.execute(
                "DELETE FROM span_records WHERE starts_with(name, 'collective.') AND rank = ? AND step >= ?",
                [rank, since],
            )
    return path


@pytest.mark.parametrize("ranks", [(0, 1), (0,), (1,)])
def test_the_steps_that_were_told_whole_are_judged(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    verdict = check_verdict(diagnose(write(tmp_path, ONSET + 12, *ranks)))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("CPU_CONTENTION", 1)
    assert finding.seconds.share == pytest.approx(ADDED_S, rel=0.1)
    assert (verdict.window.first_step, verdict.window.last_step) == (ONSET, ONSET + 11)
    assert finding.state == "open"


@pytest.mark.parametrize("rank", [0, 1])
def test_so_are_those_of_which_all_waits_were_told(tmp_path: Path, rank: int) -> None:
    fault = Fault("contention", 1, ADDED_S, ONSET)
    untold = {rank: range(ONSET + 12, STEPS)}
    job = Job(steps=STEPS, faults=(fault,), jitter_ratio=0.02, untold=untold)
    verdict = check_verdict(diagnose(write_job(tmp_path / "store.duckdb", job)))
    assert (verdict.window.first_step, verdict.window.last_step) == (ONSET, ONSET + 11)


def test_a_job_that_never_told_its_waits_is_judged_as_a_whole(tmp_path: Path) -> None:
    fault = Fault("contention", 1, ADDED_S, ONSET)
    job = Job(steps=STEPS, faults=(fault,), untold={0: range(STEPS), 1: range(STEPS)})
    verdict = check_verdict(diagnose(write_job(tmp_path / "store.duckdb", job)))
    assert verdict.window.last_step == STEPS - 1


def test_too_few_of_them_leave_the_window_as_it_is(tmp_path: Path) -> None:
    verdict = check_verdict(diagnose(write(tmp_path, ONSET + 3, 0, 1)))
    assert verdict.window.last_step == STEPS - 1
