"""What a training program tells of itself that tells the cause, in synthetic jobs with known seconds; and near misses.

    steps   60 of 120 ms | 60 of 180 ms        the fault costs 60 ms a step

Every reason fires in one test, and stays silent when what it rests on costs nothing, moves at another time, moves at
another rank, or at all ranks alike where one is late.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from support.counters import tell_sensor
from support.jobs import Fault, Job, write_job
from support.program_cases import (
    FAULT_S,
    ONSET,
    PROGRAM_CASES,
    STEPS,
    ProgramCase,
    add_told,
)
from support.verdicts import check_verdict

every_case = pytest.mark.parametrize("case", PROGRAM_CASES.values(), ids=PROGRAM_CASES)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[Fault | None, Path]:
    """Stores of jobs with one fault, or none, to be copied."""
    folder = tmp_path_factory.mktemp("jobs")
    made: dict[Fault | None, Path] = {}
    for fault in (None, *dict.fromkeys(case.fault for case in PROGRAM_CASES.values())):
        faults = () if fault is None else (fault,)
        job = Job(ranks=2, hosts=2, steps=STEPS, faults=faults)
        made[fault] = write_job(folder / f"{len(made)}.duckdb", job)
    return made


@pytest.fixture
def copy(tmp_path: Path, jobs: dict[Fault | None, Path]) -> Callable[[Fault | None], Path]:
    """Returns a copy of a job's store."""
    return lambda fault: Path(shutil.copy(jobs[fault], tmp_path / "store.duckdb"))


def find(path: Path) -> Verdict:
    """Diagnose a store and check its verdict; on its hosts are GPUs."""
    for host in range(2):
        tell_sensor(path, "nvml", "available", host)
    return check_verdict(diagnose(path))


def reasons(path: Path) -> list[str]:
    return [finding.reason for finding in find(path).findings]


def in_slow_steps(case: ProgramCase, much: float = 1.0) -> Callable[[int, int], float]:
    """As much as the fault costs, at the ranks that it strikes and while it does."""
    return lambda rank, step: much * (step >= ONSET and (case.is_common or rank == 1))


@every_case
def test_what_grows_with_the_slow_steps_is_the_cause(
    copy: Callable[[Fault | None], Path], case: ProgramCase
) -> None:
    path = copy(case.fault)
    add_told(path, case.tell, in_slow_steps(case))
    (finding,) = find(path).findings
    assert (finding.reason, finding.subject.node) == (case.reason, case.subject)
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)
    assert (finding.subject.rank, finding.pattern) == (
        (None, "uniform") if case.is_common else (1, "fixed")
    )
    assert finding.confidence.band == "high"


@every_case
def test_what_costs_next_to_nothing_is_not_the_cause(
    copy: Callable[[Fault | None], Path], case: ProgramCase
) -> None:
    path = copy(case.fault)
    add_told(path, case.tell, in_slow_steps(case, much=0.01))
    assert reasons(path) == [case.without]


@pytest.mark.variant
@every_case
@pytest.mark.parametrize(
    "steps",
    [range(STEPS), range(ONSET), range(ONSET + 45, STEPS)],
    ids=["always", "before", "long after the slow steps began"],
)
def test_what_grows_at_another_time_is_not_the_cause(
    copy: Callable[[Fault | None], Path], case: ProgramCase, steps: range
) -> None:
    path = copy(case.fault)
    add_told(path, case.tell, lambda rank, step: float(step in steps))
    assert reasons(path) == [case.without]


@pytest.mark.variant
@every_case
def test_what_grows_at_another_rank_is_not_the_cause(
    copy: Callable[[Fault | None], Path], case: ProgramCase
) -> None:
    path = copy(case.fault)
    add_told(path, case.tell, lambda rank, step: float(step >= ONSET and rank == 0))
    assert reasons(path) == [case.without]


@pytest.mark.variant
@pytest.mark.parametrize(
    "case",
    [case for case in PROGRAM_CASES.values() if not case.is_common],
    ids=[name for name, case in PROGRAM_CASES.items() if not case.is_common],
)
def test_what_all_ranks_do_alike_makes_none_of_them_late(
    copy: Callable[[Fault | None], Path], case: ProgramCase
) -> None:
    path = copy(case.fault)
    add_told(path, case.tell, lambda rank, step: float(step >= ONSET))
    assert reasons(path) == [case.without]


@pytest.mark.variant
@every_case
def test_what_grows_in_a_healthy_job_is_no_finding(
    copy: Callable[[Fault | None], Path], case: ProgramCase
) -> None:
    path = copy(None)
    add_told(path, case.tell, in_slow_steps(case))
    assert find(path).outcome == "healthy"
