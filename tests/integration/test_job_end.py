"""A job that ends because a process of it was killed for memory, and ends that only look like it.

ranks 0 and 1   80 steps of 120 ms, the first of 620 ms, the last from 9.98 s to 10.1 s
                              10.05 s: a loader worker of rank 1 is killed for memory
                              11.3 s: rank 1 ends with code 1; 11.4 s: rank 0 is ended by its launcher
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph import graph_store
from rootwalk.graph.diagnosis import Investigation, conclude_in_store, diagnose
from rootwalk.graph.render.text import headline, render_text
from rootwalk.otel_receiver import store
from support.counters import add_event
from support.jobs import Fault, Job, write_job
from support.verdicts import check_verdict

KILL, END, SIGNAL = (f"training.process.{name}" for name in ("oom_kill", "end", "signal"))
KILLED_S, ENDED_S, LATER_S = 10.05, 11.3, 11.4
RANK_PID, WORKER_PID, LAUNCHER_PID = 1001, 5001, 900


@dataclass(frozen=True)
class Told:
    """One event of a rank's process."""

    name: str
    time_s: float
    rank: int
    pid: int
    is_child: bool = False
    code: int | None = None
    signal: str | None = None
    sender: int | None = None

    def attributes(self) -> dict[str, Any]:
        told = {
            "process.pid": self.pid,
            "training.process.is_child": self.is_child,
            "process.exit.code": self.code,
            "training.signal.name": self.signal,
            "training.signal.sender.pid": self.sender,
        }
        return {name: value for name, value in told.items() if value is not None}


WORKER_KILLED = Told(KILL, KILLED_S, 1, WORKER_PID, is_child=True)
WORKER_ENDS = Told(END, KILLED_S + 0.01, 1, WORKER_PID, is_child=True, signal="SIGKILL")
RANK_ENDS = Told(END, ENDED_S, 1, RANK_PID, code=1)
ASKED = Told(SIGNAL, LATER_S, 0, 1000, signal="SIGTERM", sender=LAUNCHER_PID)
OTHER_ENDS = Told(END, LATER_S, 0, 1000, signal="SIGTERM")
USUAL = (WORKER_KILLED, WORKER_ENDS, RANK_ENDS, ASKED, OTHER_ENDS)


def write(path: Path, *told: Told, job: Job | None = None) -> Path:
    job = job or Job()
    write_job(path, job)
    for one in told:
        add_event(path, one.name, one.time_s, job.host(one.rank), one.rank, one.attributes())
    return path


def test_worker_killed_for_memory_ends_the_job(tmp_path: Path) -> None:
    verdict = check_verdict(diagnose(write(tmp_path / "s.duckdb", *USUAL)))
    assert (verdict.outcome, verdict.kind) == ("finding", None)
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank, finding.kind) == ("OOM_KILL", 1, None)
    assert finding.subject.node == f"process:host-0/{WORKER_PID}"
    assert (finding.seconds.share, finding.confidence.band) == (None, "high")
    assert finding.onset is not None
    assert finding.onset.step == 79
    assert verdict.victims.ranks == (0,)
    assert headline(finding) == (
        "rank 1 (host-0): a process of it was killed for memory, and the job ended by it"
    )
    words = " ".join(render_text(verdict).split())
    assert "j1 ended by rank 1, the first to end, with code 1" in words
    assert f"1.250 s after the kernel had killed process {WORKER_PID} (a child of it)" in words
    assert "/step" not in words


def test_rank_that_is_killed_itself(tmp_path: Path) -> None:
    told = (
        Told(KILL, KILLED_S, 1, RANK_PID),
        Told(END, KILLED_S + 0.02, 1, RANK_PID, signal="SIGKILL"),
        ASKED,
        OTHER_ENDS,
    )
    (finding,) = diagnose(write(tmp_path / "s.duckdb", *told)).findings
    assert (finding.reason, finding.subject.node) == ("OOM_KILL", f"process:host-0/{RANK_PID}")


def test_job_that_ends_in_its_first_step(tmp_path: Path) -> None:
    early = tuple(replace(one, time_s=one.time_s - KILLED_S + 0.1) for one in USUAL)
    verdict = check_verdict(diagnose(write(tmp_path / "s.duckdb", *early, job=Job(steps=1))))
    assert [one.reason for one in verdict.findings] == ["OOM_KILL"]


def test_evidence_can_be_looked_up(tmp_path: Path) -> None:
    path = write(tmp_path / "s.duckdb", *USUAL)
    (finding,) = diagnose(path).findings
    with store.reading(path) as connection:
        for row in finding.evidence:
            assert row.query is not None
            assert connection.execute(row.query).fetchall()


def test_slow_steps_before_it_are_told_first(tmp_path: Path) -> None:
    job = Job(faults=(Fault("work", 1, 0.060, 40),))
    late = tuple(replace(one, time_s=one.time_s + 40 * 0.060) for one in USUAL)
    verdict = check_verdict(diagnose(write(tmp_path / "s.duckdb", *late, job=job)))
    assert [one.reason for one in verdict.findings] == ["WORK_IMBALANCE", "OOM_KILL"]
    assert verdict.kind == "slow"
    assert verdict.findings[0].seconds.share == pytest.approx(0.060, abs=0.002)


@pytest.mark.parametrize("table", ["edges", "evidence"])
def test_without_a_part_of_the_graph_nothing_is_said(tmp_path: Path, table: str) -> None:
    path = write(tmp_path / "s.duckdb", *USUAL)
    with store.writing(path) as connection:
        investigation = Investigation(connection, None, None)
        assert conclude_in_store(connection, investigation).findings
        assert investigation.key is not None
        connection.execute(f"DELETE FROM {table}")  # noqa: S608  (our own names)
        damaged = investigation.conclude(*graph_store.load_graph(connection, investigation.key))
    assert (damaged.outcome, damaged.findings) == ("insufficient_evidence", ())
    assert damaged.end is not None
    assert damaged.end.rank is None


FIRST = replace(RANK_ENDS, rank=0, pid=1000, time_s=KILLED_S + 0.5)
NEAR_MISSES: dict[str, tuple[Told, ...]] = {
    "killed by hand": tuple(
        replace(WORKER_KILLED, name=SIGNAL, signal="SIGKILL", sender=77)
        if one is WORKER_KILLED
        else one
        for one in USUAL
    ),
    "replaced, and the job ends well": (
        replace(WORKER_KILLED, time_s=4.0),
        replace(WORKER_ENDS, time_s=4.0),
        replace(RANK_ENDS, code=0),
        replace(OTHER_ENDS, code=0, signal=None),
    ),
    "replaced, and the job fails later": (
        replace(WORKER_KILLED, time_s=4.0),
        replace(WORKER_ENDS, time_s=4.0),
        *USUAL[2:],
    ),
    "workers of a job that ends well": (
        replace(WORKER_ENDS, signal="SIGTERM"),
        replace(RANK_ENDS, code=0),
        replace(OTHER_ENDS, code=0, signal=None),
    ),
    "as the job ends well": (
        WORKER_KILLED,
        replace(RANK_ENDS, code=0),
        replace(OTHER_ENDS, code=0, signal=None),
    ),
    "another rank ended before": (WORKER_KILLED, WORKER_ENDS, FIRST, RANK_ENDS),
    "another rank was done before": (*USUAL[:3], replace(FIRST, code=0)),
    "the rank was asked to end": (
        *USUAL,
        Told(SIGNAL, ENDED_S - 0.5, 1, RANK_PID, signal="SIGTERM", sender=LAUNCHER_PID),
    ),
    "a key at the terminal": (*USUAL, Told(SIGNAL, ENDED_S - 0.5, 1, RANK_PID, signal="SIGINT")),
    "long before the end": tuple(
        replace(one, time_s=one.time_s + 70.0) if one.time_s >= ENDED_S else one for one in USUAL
    ),
    "a worker of a rank that did not end first": tuple(
        replace(one, rank=0) if one.is_child else one for one in USUAL
    ),
    "nobody's end is known": (WORKER_KILLED, WORKER_ENDS),
}


# What is said of those instead: the outcome, and the code of the rank that failed first.
INSTEAD: dict[str, tuple[str, list[tuple[str, int]]]] = {
    "killed by hand": ("finding", [("RANK_CRASHED", 1)]),
    "replaced, and the job ends well": ("healthy", []),
    "replaced, and the job fails later": ("finding", [("RANK_CRASHED", 1)]),
    "workers of a job that ends well": ("healthy", []),
    "as the job ends well": ("healthy", []),
    "another rank ended before": ("finding", [("RANK_CRASHED", 0)]),
    "another rank was done before": ("finding", [("RANK_CRASHED", 1)]),
    "the rank was asked to end": ("insufficient_evidence", []),
    "a key at the terminal": ("healthy", []),
    "long before the end": ("finding", [("RANK_CRASHED", 1)]),
    "a worker of a rank that did not end first": ("finding", [("RANK_CRASHED", 1)]),
    "nobody's end is known": ("healthy", []),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_other_ends_are_no_kill_for_memory(tmp_path: Path, name: str) -> None:
    verdict = check_verdict(diagnose(write(tmp_path / "s.duckdb", *NEAR_MISSES[name])))
    found = [(finding.reason, finding.subject.rank) for finding in verdict.findings]
    assert (verdict.outcome, found) == INSTEAD[name]


def test_job_that_goes_on_without_the_rank(tmp_path: Path) -> None:
    # the rank is gone 3 s before the last step
    early = tuple(replace(one, time_s=one.time_s - 4.3) for one in USUAL[:3])
    own = tuple(replace(one, pid=RANK_PID, is_child=False) for one in early)
    assert diagnose(write(tmp_path / "s.duckdb", *own)).findings == ()


def test_kill_of_another_group_is_no_rank_s(tmp_path: Path) -> None:
    path = write(tmp_path / "s.duckdb", *USUAL[2:])
    said = {"training.kernel.message.kind": "out_of_memory"}
    add_event(path, "training.kernel.message", KILLED_S, host=0, rank=None, attributes=said)
    assert [one.reason for one in diagnose(path).findings] == ["RANK_CRASHED"]


def test_chosen_steps_are_not_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "s.duckdb", *USUAL)
    assert diagnose(path, steps=(30, 60)).findings == ()


@pytest.mark.parametrize("hosts", [1, 2])
def test_hosts_whose_clocks_nothing_compares(tmp_path: Path, hosts: int) -> None:
    job = Job(hosts=hosts, has_collectives=False)
    verdict = diagnose(write(tmp_path / "s.duckdb", *USUAL, job=job))
    assert len(verdict.findings) == (1 if hosts == 1 else 0)
    assert verdict.outcome != "healthy"


def test_clocks_of_hosts_are_put_on_one(tmp_path: Path) -> None:
    # host 1 is 2 s behind: by its own clock rank 1 was killed 2 s before it was
    job = Job(hosts=2, skew_s=(0.0, -2.0))
    told = tuple(replace(one, time_s=one.time_s - 2.0) if one.rank == 1 else one for one in USUAL)
    first = replace(OTHER_ENDS, time_s=ENDED_S - 1.0, signal=None, code=1)
    path = write(tmp_path / "a.duckdb", *told, job=job)
    assert [one.reason for one in diagnose(path).findings] == ["OOM_KILL"]
    path = write(tmp_path / "b.duckdb", *told[:3], first, job=job)
    found = [(one.reason, one.subject.rank) for one in diagnose(path).findings]
    assert found == [("RANK_CRASHED", 0)]
