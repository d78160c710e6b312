"""One fault that costs a rank time in two ways is one finding: swapped pages, and the search for memory to hold them.

steps   200 of 120 ms | 200 of 240 ms        60 ms of work for the pages, 60 ms of looking for memory
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rootwalk.graph import graph_store
from rootwalk.graph.diagnosis import Investigation, diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.reasons import Signal
from rootwalk.otel_receiver import store
from support.counter_cases import FAULT_S, HOST_CASES, LENGTH_S, ONSET_S, STEPS, WORK, swapped
from support.counters import Told, add_counters
from support.jobs import Fault, Job, write_job
from support.verdicts import check_verdict

RECLAIM = Fault("reclaim", 1, FAULT_S, WORK.first_step)
PAGES = 33_000.0
SWAP: tuple[Told, ...] = (
    *swapped(PAGES, PAGES)(1, 1.0, ONSET_S),
    *swapped(PAGES, PAGES)(0, 0.0, 0.0),
)


def find(folder: Path, *faults: Fault, told: tuple[Told, ...] = SWAP) -> Verdict:
    """Write a job with its counters, and diagnose it."""
    return check_verdict(diagnose(write(folder, *faults, told=told)))


def write(folder: Path, *faults: Fault, told: tuple[Told, ...] = SWAP) -> Path:
    """Write a job of two hosts with its counters."""
    path = write_job(folder / "store.duckdb", Job(ranks=2, hosts=2, steps=STEPS, faults=faults))
    add_counters(path, told, LENGTH_S)
    return path


def test_rank_that_looks_for_room_for_its_pages_has_one_finding(tmp_path: Path) -> None:
    verdict = find(tmp_path, WORK, RECLAIM)
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("SWAP", 1)
    assert finding.seconds.share == pytest.approx(2.0 * FAULT_S, rel=0.05)
    assert finding.seconds.remove == pytest.approx(2.0 * FAULT_S, rel=0.05)
    assert finding.predicted_step_s == pytest.approx(verdict.healthy_step_s, rel=0.05)
    assert {str(Signal.RECLAIM), "training.memory.major_faults"} <= {
        row.signal for row in finding.evidence
    }
    assert verdict.unexplained_s == pytest.approx(0.0, abs=0.002)


def test_without_pages_read_from_swap_both_causes_stand(tmp_path: Path) -> None:
    findings = find(tmp_path, WORK, RECLAIM, told=()).findings
    assert {finding.reason for finding in findings} == {"WORK_IMBALANCE", "MEM_RECLAIM"}


def test_what_another_rank_looks_for_is_not_included(tmp_path: Path) -> None:
    # Either rank alone would keep the steps as long: this one has half of what both cost.
    (finding,) = find(tmp_path, WORK, replace(RECLAIM, rank=0)).findings
    assert (finding.reason, finding.subject.rank) == ("SWAP", 1)
    assert (finding.seconds.share or 0.0) < 0.7 * FAULT_S


def test_without_the_counter_s_edge_both_causes_stand(tmp_path: Path) -> None:
    path = write(tmp_path, WORK, RECLAIM)
    with store.writing(path) as connection:
        investigation = Investigation(connection, None, None)
        investigation.refine(connection)
        assert investigation.key is not None
        assert investigation.graph is not None
        graph_store.save_graph(
            connection, investigation.key, investigation.graph, investigation.evidence
        )
        connection.execute("DELETE FROM edges WHERE attributes ->> '$.reason' = 'SWAP'")
        graph, evidence = graph_store.load_graph(connection, investigation.key)
    findings = investigation.conclude(graph, evidence).findings
    assert {one.reason for one in findings} == {"WORK_IMBALANCE", "MEM_RECLAIM"}


@pytest.mark.parametrize(
    ("queue_s", "reasons"),
    [(0.020, ["CPU_FREQ"]), (0.100, ["THREAD_OVERSUBSCRIPTION", "CPU_FREQ"])],
    ids=["less", "more"],
)
def test_a_slow_cpu_has_the_longer_queue_behind_the_ranks_own_threads(
    tmp_path: Path, queue_s: float, reasons: list[str]
) -> None:
    told = [one for rank in (0, 1) for one in HOST_CASES["clock"].tell(rank, rank, ONSET_S)]
    queue = replace(WORK, kind="own", seconds=queue_s)
    verdict = find(tmp_path, WORK, queue, told=tuple(told))
    assert [f.reason for f in verdict.findings] == reasons
    costs_s = sum(f.seconds.share or 0.0 for f in verdict.findings)
    assert costs_s == pytest.approx(FAULT_S + queue_s, abs=0.004)
