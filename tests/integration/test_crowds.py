"""Strangers in the way of all ranks of a host: from synthetic jobs through a real store to whom they are charged to.

What is added begins at step 60 of 100 and is 40 ms a step where nothing else is said (see `support.jobs`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.model import Finding, Verdict
from rootwalk.graph.render.text import headline
from support.jobs import Fault, Job
from support.verdicts import solve

ONSET, MORE_S = 60, 0.040
PHASES = ("data_load", "forward", "optimizer")
NAMES = {4401: "burner", 4402: "burner", 4403: "burner"}


def behind(rank: int, pids: tuple[int, ...], seconds: float = MORE_S) -> tuple[Fault, ...]:
    """Return a rank's waits behind processes, one in each phase."""
    return tuple(
        Fault(
            "contention",
            rank,
            seconds / len(pids),
            ONSET,
            phase=phase,
            pid=pid,
            name=NAMES.get(pid, f"stranger-{pid}"),
        )
        for phase, pid in zip(PHASES, pids, strict=False)
    )


def verdict_of(tmp_path: Path, *faults: Fault, ranks: int = 2, hosts: int = 1) -> Verdict:
    return solve(
        tmp_path,
        Job("j1", ranks=ranks, steps=100, hosts=hosts, faults=faults, jitter_ratio=0.02),
    )


def named(verdict: Verdict) -> list[tuple[str, int | None]]:
    return [(one.reason, one.subject.rank) for one in verdict.findings]


def only(verdict: Verdict) -> Finding:
    (finding,) = verdict.findings
    return finding


def test_processes_of_one_name_that_go_round_are_one_finding_of_the_host(tmp_path: Path) -> None:
    faults = behind(0, (4401, 4402, 4403)) + behind(1, (4403, 4401, 4402))
    finding = only(verdict_of(tmp_path, *faults))
    assert (finding.reason, finding.subject.rank) == ("CPU_CONTENTION", None)
    assert (finding.subject.host, finding.subject.aggressor) == ("host-0", None)
    assert (finding.owner, finding.confidence.band) == ("node", "high")
    assert finding.seconds.share == pytest.approx(MORE_S, rel=0.1)
    assert finding.seconds.remove == pytest.approx(MORE_S, rel=0.1)
    assert headline(finding).startswith(
        "all ranks on host-0: CPU contention by 3 processes named 'burner'"
    )
    assert "those processes" in finding.action
    told = {one.signal: one.value for one in finding.evidence}
    assert told["training.thread.runnable_foreign_time"] == pytest.approx(MORE_S, rel=0.1)


def test_nor_is_a_rank_to_blame_that_meets_one_of_them_only(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, *behind(0, (4401,)), *behind(1, (4402,)))
    assert named(verdict) == [("CPU_CONTENTION", None)]


def test_one_process_that_goes_round_is_named(tmp_path: Path) -> None:
    finding = only(verdict_of(tmp_path, *behind(0, (4401,)), *behind(1, (4401,))))
    assert finding.subject.rank is None
    assert finding.subject.aggressor is not None
    assert (finding.subject.aggressor.pid, finding.subject.aggressor.name) == (4401, "burner")
    assert "pid 4401" in finding.action


@pytest.mark.parametrize("spared_s", [0.0, 0.010], ids=["not at all", "hardly"])
def test_strangers_on_one_rank_s_cpu_are_that_rank_s(tmp_path: Path, spared_s: float) -> None:
    others = behind(1, (4401,), spared_s) if spared_s else ()
    verdict = verdict_of(tmp_path, *behind(0, (4401, 4402)), *others)
    assert {rank for _, rank in named(verdict)} == {0}


def test_two_strangers_each_on_one_rank_s_cpu_are_two_findings(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, *behind(0, (4411,)), *behind(1, (4412,)))
    assert sorted(named(verdict)) == [("CPU_CONTENTION", 0), ("CPU_CONTENTION", 1)]
    found = {one.subject.rank: one.subject.aggressor for one in verdict.findings}
    assert {rank: one.pid for rank, one in found.items() if one} == {0: 4411, 1: 4412}


def test_a_stranger_on_one_rank_s_cpu_beside_a_crowd_stays_that_rank_s(tmp_path: Path) -> None:
    crowd = (*behind(0, (4401,)), *behind(1, (4402,)))
    alone = Fault("contention", 1, MORE_S, ONSET, phase="optimizer", pid=4411, name="stranger-4411")
    verdict = verdict_of(tmp_path, *crowd, alone)
    assert sorted(named(verdict), key=str) == [("CPU_CONTENTION", 1), ("CPU_CONTENTION", None)]


def test_it_is_a_finding_of_the_host_that_has_them(tmp_path: Path) -> None:
    faults = behind(2, (4401, 4402)) + behind(3, (4402, 4401))
    finding = only(verdict_of(tmp_path, *faults, ranks=4, hosts=2))
    assert (finding.subject.rank, finding.subject.host) == (None, "host-1")
    assert finding.seconds.share == pytest.approx(MORE_S, rel=0.1)


def test_two_hosts_with_crowds_of_their_own_are_two_findings(tmp_path: Path) -> None:
    faults = [fault for rank in range(4) for fault in behind(rank, (4401, 4402))]
    verdict = verdict_of(tmp_path, *faults, ranks=4, hosts=2)
    assert named(verdict) == [("CPU_CONTENTION", None)] * 2
    assert {one.subject.host for one in verdict.findings} == {"host-0", "host-1"}


def test_where_one_of_three_ranks_is_spared_the_others_are_named(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, *behind(0, (4401,)), *behind(1, (4402,)), ranks=3)
    assert {rank for _, rank in named(verdict)} == {0, 1}


def test_a_rank_alone_on_its_host_is_named(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, *behind(0, (4401,)), *behind(1, (4401,)), hosts=2)
    assert {rank for _, rank in named(verdict)} == {0, 1}
