"""Threads blocked on something that the kernel names, in synthetic jobs, through a real store, to the cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.model import Band
from rootwalk.graph.render.text import render_text
from support.jobs import Fault, Job
from support.verdicts import solve

FAULT_S = 0.060
SLOW = (40, 79)


def contention_beside(kind: str, phase: str) -> tuple[Fault, ...]:
    """Return a fault that is new, on rank 1, beside waits that both ranks always had."""
    always = [Fault(kind, rank, 0.020, 0, phase=phase) for rank in (0, 1)]
    return (*always, Fault("contention", 1, FAULT_S, SLOW[0]))


@pytest.mark.parametrize(
    ("kind", "phase", "reason", "words"),
    [
        ("gil", "forward", "PY_GIL", "held by thread 'thread-0badcafe' tid 7007"),
        ("read", "data_load", "DATALOADER_IO", "input blocked on files: nfs on 0:45"),
        ("loader_read", "data_load", "DATALOADER_IO", "input blocked on files: fuse on 0:51"),
        ("write", "optimizer", "BLOCKING_LOG", "blocked writing its output: ext4 on vdb"),
        ("output", "optimizer", "BLOCKING_LOG", "blocked writing its output: a pipe"),
        ("service", "forward", "EXTERNAL_SERVICE", "remote connection to port 443"),
        ("stopped", "forward", "PROCESS_SUSPENDED", "stopped by a signal"),
        ("interrupt", "forward", "IRQ_SOFTIRQ", "interrupt work on its CPU"),
        ("reclaim", "forward", "MEM_RECLAIM", "looked for free memory itself"),
        (
            "map_lock",
            "forward",
            "KERNEL_LOCK",
            "its memory map, held by thread 'thread-0badcafe' tid 7007",
        ),
    ],
)
def test_what_a_thread_waited_for_is_named(
    tmp_path: Path, kind: str, phase: str, reason: str, words: str
) -> None:
    job = Job(faults=(Fault(kind, 1, FAULT_S, SLOW[0], phase=phase),), loader_s=0.001)
    verdict = solve(tmp_path, job)
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == (reason, 1)
    assert finding.confidence.band == Band.HIGH
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)
    assert verdict.unexplained_s == pytest.approx(0.0, abs=0.002)
    headline = " ".join(render_text(verdict).split("step ")[0].split())
    assert words in headline


def test_files_read_in_the_middle_of_the_work_are_nobodys_input(tmp_path: Path) -> None:
    verdict = solve(tmp_path, Job(faults=(Fault("read", 1, FAULT_S, SLOW[0], phase="optimizer"),)))
    assert [finding.reason for finding in verdict.findings] == ["UNKNOWN_HOST"]


def test_without_the_kinds_the_same_wait_is_unknown(tmp_path: Path) -> None:
    # The coarse sensor tells that a thread was blocked, and not on what.
    fault = Fault("read", 1, FAULT_S, SLOW[0], phase="data_load")
    verdict = solve(tmp_path, Job(sensor="proc", faults=(fault,)))
    assert [finding.reason for finding in verdict.findings] == ["UNKNOWN_HOST"]


def test_what_was_always_waited_for_is_no_cause(tmp_path: Path) -> None:
    faults = contention_beside("read", "data_load")
    verdict = solve(tmp_path, Job(faults=faults))
    assert [finding.reason for finding in verdict.findings] == ["CPU_CONTENTION"]


@pytest.mark.parametrize(
    "untold",
    [range(30), range(38), range(30, 45), range(45, 80), range(80)],
    ids=["early", "nearly all before", "around the onset", "the end", "all"],
)
def test_a_change_of_level_makes_no_wait_a_cause(tmp_path: Path, untold: range) -> None:
    faults = contention_beside("read", "data_load")
    verdict = solve(tmp_path, Job(faults=faults, untold={0: untold, 1: untold}))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("CPU_CONTENTION", 1)
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)


@pytest.mark.parametrize("short", [range(40, 80), range(30), range(45, 60)])
def test_a_level_that_tells_shorter_waits_makes_none_a_cause(tmp_path: Path, short: range) -> None:
    faults = contention_beside("gil", "forward")
    verdict = solve(tmp_path, Job(faults=faults, short={0: short, 1: short}))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("CPU_CONTENTION", 1)


@pytest.mark.parametrize("untold", [range(30), range(33), range(50, 80)])
def test_enough_told_steps_name_the_wait(tmp_path: Path, untold: range) -> None:
    fault = Fault("read", 1, FAULT_S, SLOW[0], phase="data_load")
    verdict = solve(tmp_path, Job(faults=(fault,), untold={0: untold, 1: untold}))
    assert [finding.reason for finding in verdict.findings] == ["DATALOADER_IO"]


@pytest.mark.parametrize("untold", [range(37), range(43, 80), range(80)])
def test_a_wait_that_is_not_told_alike_is_unknown(tmp_path: Path, untold: range) -> None:
    fault = Fault("read", 1, FAULT_S, SLOW[0], phase="data_load")
    verdict = solve(tmp_path, Job(faults=(fault,), untold={0: untold, 1: untold}))
    assert [finding.reason for finding in verdict.findings] == ["UNKNOWN_HOST"]


def test_ranks_at_different_levels_are_compared_by_what_both_tell(tmp_path: Path) -> None:
    # Too short for a history of its own: the ranks are compared with each other.
    faults = (
        Fault("read", 0, 0.020, 0, phase="data_load"),
        Fault("read", 1, 0.020, 0, phase="data_load"),
        Fault("contention", 1, FAULT_S, 0),
    )
    verdict = solve(tmp_path, Job(steps=12, faults=faults, untold={0: range(12)}))
    # What both wait for is input, whatever it is.
    named = [(finding.reason, finding.subject.rank) for finding in verdict.findings]
    assert named == [("CPU_CONTENTION", 1), ("UNKNOWN_HOST", None)]


def test_all_ranks_that_wait_for_one_storage_accuse_no_rank(tmp_path: Path) -> None:
    faults = tuple(Fault("read", rank, FAULT_S, SLOW[0], phase="data_load") for rank in range(4))
    verdict = solve(tmp_path, Job(ranks=4, faults=faults))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("DATALOADER_IO", None)
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.004)


def test_the_chain_ends_at_the_file_system(tmp_path: Path) -> None:
    job = Job(faults=(Fault("loader_read", 1, FAULT_S, SLOW[0], phase="data_load"),), loader_s=0.01)
    verdict = solve(tmp_path, job)
    (finding,) = verdict.findings
    assert finding.subject.node == "file_system:host-0/0:51"
    assert [link.edge for link in finding.chain][-2:] == ["waits_for", "blocked"]


def test_more_work_beside_a_little_reclaim_stays_work(tmp_path: Path) -> None:
    faults = (Fault("work", 1, 0.060, 40), Fault("reclaim", 1, 0.001, 40))
    first = solve(tmp_path, Job(faults=faults)).findings[0]
    assert (first.reason, first.subject.rank) == ("WORK_IMBALANCE", 1)
    assert first.seconds.share == pytest.approx(0.060, abs=0.002)
