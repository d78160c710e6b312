"""A job that is slower since it was started again: with other versions, with the same, or because of one rank.

attempt 0   60 steps of 120 ms       attempt 1   60 steps of 180 ms
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from support.jobs import Fault, Job, simulate, write_rows
from support.verdicts import check_verdict

OLD, NEW = "torch 2.14.1, CUDA 13.0", "torch 2.15.0, CUDA 13.2"
SLOWER = Fault("uniform", 0, 0.060, 0)
LATE = Fault("work", 1, 0.060, 0)
HOUR_NS = 3_600 * 10**9


def starts(
    path: Path,
    releases: tuple[str, str],
    faults: tuple[Fault, ...],
    ranks: tuple[int, int] = (2, 2),
) -> Path:
    """Write a job that was started twice; its second start has the faults."""
    rows = []
    for attempt, (release, size) in enumerate(zip(releases, ranks, strict=True)):
        job = Job(
            ranks=size, hosts=size, steps=60, attempt=attempt, faults=faults if attempt else ()
        )
        resource = json.dumps({"training.release": release} if release else {})
        for row in simulate(job):
            for column in ("start_unix_ns", "end_unix_ns"):
                row[column] += attempt * HOUR_NS
            for column, digits in (("trace_id", 32), ("span_id", 16)):
                row[column] = f"{int(row[column], 16) ^ attempt:0{digits}x}"
            rows.append(row | {"resource": resource})
    return write_rows(path, rows)


def test_all_ranks_slower_since_a_start_with_other_versions(tmp_path: Path) -> None:
    verdict = check_verdict(diagnose(starts(tmp_path / "s.duckdb", (OLD, NEW), (SLOWER,))))
    (finding,) = verdict.findings
    assert (finding.reason, finding.pattern) == ("RELEASE_REGRESSION", "uniform")
    assert finding.subject.node == "release:j1/1"
    assert finding.seconds.share == pytest.approx(0.060, abs=0.002)
    assert verdict.healthy_step_s == pytest.approx(0.120, abs=0.001)
    assert finding.chain[0].text == f"j1 was slowed by {NEW}, before {OLD}"
    assert finding.confidence.band == "high"


@pytest.mark.parametrize(
    ("releases", "faults", "ranks"),
    [
        ((OLD, OLD), (SLOWER,), (2, 2)),
        ((OLD, ""), (SLOWER,), (2, 2)),
        ((OLD, NEW), (), (2, 2)),
        ((OLD, NEW), (LATE,), (2, 2)),
        ((OLD, NEW), (SLOWER,), (3, 2)),
    ],
    ids=["the same versions", "none told", "as fast as before", "one late rank", "fewer ranks"],
)
def test_other_starts_are_no_regression(
    tmp_path: Path, releases: tuple[str, str], faults: tuple[Fault, ...], ranks: tuple[int, int]
) -> None:
    verdict = check_verdict(diagnose(starts(tmp_path / "s.duckdb", releases, faults, ranks)))
    late = [("WORK_IMBALANCE", 1)] if LATE in faults else []
    assert [(one.reason, one.subject.rank) for one in verdict.findings] == late
    assert verdict.outcome == ("finding" if late else "healthy")


def test_what_the_second_start_s_own_history_shows_comes_first(tmp_path: Path) -> None:
    late = Fault("work", 1, 0.060, 35)
    path = starts(tmp_path / "s.duckdb", (OLD, NEW), (SLOWER, late))
    assert [one.reason for one in diagnose(path).findings] == ["WORK_IMBALANCE"]
