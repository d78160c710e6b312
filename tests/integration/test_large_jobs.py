"""A job of which only some ranks are read: the short form of `make bench-scale`, 64 ranks in 8 hosts.

What a step costs more is known from the same job without the fault.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph import diagnosis
from rootwalk.graph.large import selection
from rootwalk.graph.model import Verdict
from support.large_jobs import FAULTS, LargeJob, longer_s, write_large_job

pytestmark = pytest.mark.long


def diagnose(folder: Path, job: LargeJob) -> Verdict:
    path = folder / "store.duckdb"
    if not path.exists():
        write_large_job(path, job)
    return diagnosis.diagnose(path)


def told(verdict: Verdict) -> list[tuple[str, int | None]]:
    return [(finding.reason, finding.subject.rank) for finding in verdict.findings]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_rank_is_named_though_few_are_read(fault: str, tmp_path: Path) -> None:
    job = LargeJob(64, fault=fault)
    verdict = diagnose(tmp_path, job)
    assert told(verdict) == [(FAULTS[fault][1], job.culprit)]
    assert verdict.findings[0].seconds.share == pytest.approx(longer_s(job), rel=0.2)
    (item,) = [q for q in verdict.data_quality if q.code == "RANKS_CHOSEN"]
    assert item.count is not None
    assert item.count < 40


def test_a_healthy_job_is_healthy(tmp_path: Path) -> None:
    verdict = diagnose(tmp_path, LargeJob(64, fault=None))
    assert verdict.outcome == "healthy"
    assert told(verdict) == []


def test_few_ranks_give_the_answer_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = LargeJob(64)
    few = diagnose(tmp_path, job)
    monkeypatch.setattr(selection, "MAX_RECORDS", 10_000_000)
    every = diagnose(tmp_path, job)
    assert not every.data_quality
    assert told(few) == told(every) == [("CPU_CONTENTION", job.culprit)]
    shares = [verdict.findings[0].seconds.share for verdict in (few, every)]
    assert shares[0] == pytest.approx(shares[1], rel=0.05)
    # Who waited is told of all ranks, those included that were not read.
    assert few.victims.count == pytest.approx(every.victims.count, abs=2)


def test_the_same_ranks_are_read_again(tmp_path: Path) -> None:
    job = LargeJob(64)
    first, again = diagnose(tmp_path, job), diagnose(tmp_path, job)
    assert first.findings == again.findings
    assert first.data_quality == again.data_quality
