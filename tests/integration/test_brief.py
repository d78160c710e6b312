"""A short slowdown that is over: causes that only exclusion speaks for do not stand, those that were seen do."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.text import render_text
from support.jobs import Fault, Job, write_job
from support.verdicts import check_verdict

STEPS, ONSET = 120, 60
BRIEF, LONG = ONSET + 10, ONSET + 39
ADDED_S = 0.06


def find(
    folder: Path, kind: str, last: int | None, asked: tuple[int, int] | None = None
) -> Verdict:
    """Diagnose a job whose rank 1 loses 60 ms of 120 in some steps."""
    job = Job(steps=STEPS, faults=(Fault(kind, 1, ADDED_S, ONSET, last),), jitter_ratio=0.02)
    return check_verdict(diagnose(write_job(folder / "store.duckdb", job), steps=asked))


@pytest.mark.parametrize("kind", ["work", "transfer", "page_fault"])
def test_what_exclusion_alone_speaks_for_is_not_named(tmp_path: Path, kind: str) -> None:
    verdict = find(tmp_path, kind, BRIEF)
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())
    assert (verdict.window.first_step, verdict.window.last_step) == (ONSET, BRIEF)
    assert verdict.unexplained_s == pytest.approx(ADDED_S, rel=0.1)
    said = " ".join(render_text(verdict).split())
    assert f"in steps {ONSET} to {BRIEF}" in said
    assert "no cause that the records support" in said


def test_what_was_seen_is_named(tmp_path: Path) -> None:
    (finding,) = find(tmp_path, "contention", BRIEF).findings
    assert (finding.reason, finding.subject.rank) == ("CPU_CONTENTION", 1)


def test_what_was_seen_and_explains_little_is_not_named(tmp_path: Path) -> None:
    work, queue = Fault("work", 1, ADDED_S, ONSET, BRIEF), Fault("own", 1, 0.015, ONSET, BRIEF)
    job = Job(steps=STEPS, faults=(work, queue), jitter_ratio=0.02)
    path = write_job(tmp_path / "store.duckdb", job)
    assert check_verdict(diagnose(path)).outcome == "insufficient_evidence"
    found = check_verdict(diagnose(path, steps=(ONSET, BRIEF))).findings
    assert {f.reason for f in found} == {"WORK_IMBALANCE", "THREAD_OVERSUBSCRIPTION"}


@pytest.mark.parametrize(
    ("last", "asked"),
    [(LONG, None), (None, None), (BRIEF, (ONSET, BRIEF))],
    ids=["cost more", "goes on", "asked for"],
)
def test_work_that_grows_is_named(
    tmp_path: Path, last: int | None, asked: tuple[int, int] | None
) -> None:
    (finding,) = find(tmp_path, "work", last, asked).findings
    assert (finding.reason, finding.subject.rank) == ("WORK_IMBALANCE", 1)
