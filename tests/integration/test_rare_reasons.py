"""Reasons that need a name or a phase of their own, and what keeps each reason silent: that it was always so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from support.counters import tell_sensor
from support.jobs import Fault, Job, simulate, write_rows
from support.verdicts import check_verdict, solve

FAULT_S, ONSET = 0.060, 40
MONITOR = "rootwalk-agent"


def checkpointing(folder: Path, *faults: Fault) -> Verdict:
    """Diagnose a job whose last phase is a checkpoint instead of an optimiser step."""
    rows = simulate(Job(faults=faults))
    for row in rows:
        if row.get("phase") == "optimizer":
            row["phase"] = "checkpoint"
            row["name"] = "checkpoint" if row["name"] == "optimizer" else row["name"]
    return check_verdict(diagnose(write_rows(folder / "store.duckdb", rows)))


def reasons(verdict: Verdict) -> list[tuple[str, int | None]]:
    return [(finding.reason, finding.subject.rank) for finding in verdict.findings]


def test_a_monitor_in_a_ranks_place_is_named_as_one(tmp_path: Path) -> None:
    fault = Fault("contention", 1, FAULT_S, ONSET, name=MONITOR)
    (finding,) = solve(tmp_path, Job(faults=(fault,))).findings
    assert (finding.reason, finding.owner) == ("MONITOR_SELF", "platform")


def test_a_monitor_that_was_always_in_its_place_is_not_the_cause(tmp_path: Path) -> None:
    always = tuple(Fault("contention", rank, 0.020, 0, name=MONITOR, pid=7) for rank in (0, 1))
    new = Fault("contention", 1, FAULT_S, ONSET, phase="forward")
    assert reasons(solve(tmp_path, Job(faults=(*always, new)))) == [("CPU_CONTENTION", 1)]


def test_a_checkpoint_blocked_on_files_is_named(tmp_path: Path) -> None:
    fault = Fault("write", 1, FAULT_S, ONSET, phase="optimizer")
    assert reasons(checkpointing(tmp_path, fault)) == [("CKPT_IO", 1)]


def test_a_checkpoint_that_always_took_so_long_is_not_the_cause(tmp_path: Path) -> None:
    always = tuple(Fault("write", rank, 0.020, 0, phase="optimizer") for rank in (0, 1))
    new = Fault("contention", 1, FAULT_S, ONSET)
    assert reasons(checkpointing(tmp_path, *always, new)) == [("CPU_CONTENTION", 1)]


@pytest.mark.parametrize(
    ("kind", "phase"),
    [
        ("gil", "forward"),
        ("read", "data_load"),
        ("write", "optimizer"),
        ("output", "optimizer"),
        ("service", "forward"),
        ("stopped", "forward"),
        ("interrupt", "forward"),
        ("reclaim", "forward"),
        ("map_lock", "forward"),
        ("device", "forward"),
        ("own", "forward"),
        ("quota", "forward"),
        ("work", "forward"),
        ("blocked", "forward"),
    ],
)
def test_what_was_always_so_is_not_the_cause(tmp_path: Path, kind: str, phase: str) -> None:
    always = tuple(Fault(kind, rank, 0.020, 0, phase=phase) for rank in (0, 1))
    new = Fault("contention", 1, FAULT_S, ONSET)
    assert reasons(solve(tmp_path, Job(faults=(*always, new)))) == [("CPU_CONTENTION", 1)]


def test_a_memory_map_that_a_disk_held_up_is_no_lock(tmp_path: Path) -> None:
    fault = Fault("map_disk", 1, FAULT_S, ONSET, phase="forward")
    assert reasons(solve(tmp_path, Job(faults=(fault,)))) == [("UNKNOWN_HOST", 1)]


def waiting_for_devices(folder: Path, job: Job, reason: str | None) -> Verdict:
    """Diagnose a job on whose hosts nobody reads GPUs, for a reason; None where nobody has looked for them."""
    path = write_rows(folder / "store.duckdb", simulate(job))
    for host in range(job.hosts) if reason is not None else ():
        tell_sensor(path, "nvml", "unavailable", host, reason or "")
    return check_verdict(diagnose(path))


def test_a_rank_that_waits_for_its_gpu_is_named(tmp_path: Path) -> None:
    fault = Fault("device", 1, FAULT_S, ONSET, phase="forward")
    verdict = waiting_for_devices(tmp_path, Job(faults=(fault,)), "NOT_IN_THIS_VERSION")
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("UNKNOWN_GPU", 1)
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)
    assert finding.confidence.band != "high"
    (missing,) = verdict.missing_sensors
    assert missing.sensor == "nvml"


@pytest.mark.parametrize("reason", ["NO_DRIVER", None])
def test_a_wait_for_a_device_is_no_gpus_where_there_is_none(
    tmp_path: Path, reason: str | None
) -> None:
    fault = Fault("device", 1, FAULT_S, ONSET, phase="forward")
    verdict = waiting_for_devices(tmp_path, Job(faults=(fault,)), reason)
    assert reasons(verdict) == [("UNKNOWN_HOST", 1)]


def test_ranks_whose_device_waits_for_a_late_rank_are_its_victims(tmp_path: Path) -> None:
    # What the others wait in the collective is told as a wait for the device, as a call of CUDA is.
    rows = simulate(Job(ranks=4, faults=(Fault("work", 1, FAULT_S, ONSET),)))
    for row in rows:
        if row["step"] >= ONSET and row["rank"] != 1 and row.get("phase", "backward") == "backward":
            told: dict[str, object] = {
                "training.wait.min_time": 0.0001,
                "training.wait.kinds": {"arrayValue": {"values": [{"stringValue": "device"}]}},
                "training.wait.times": {"arrayValue": {"values": [{"doubleValue": FAULT_S}]}},
            }
            if not str(row["name"]).startswith(("stall", "collective")):
                row["attributes"] = json.dumps(told)
    path = write_rows(tmp_path / "store.duckdb", rows)
    tell_sensor(path, "nvml", "unavailable", 0, "NOT_IN_THIS_VERSION")
    assert reasons(check_verdict(diagnose(path))) == [("WORK_IMBALANCE", 1)]


@pytest.mark.parametrize(("kind", "phase"), [("read", "data_load"), ("loader_read", "data_load")])
def test_all_hosts_blocked_on_files_at_once_are_the_storage(
    tmp_path: Path, kind: str, phase: str
) -> None:
    faults = tuple(Fault(kind, rank, FAULT_S, ONSET, phase=phase) for rank in range(4))
    (finding,) = solve(tmp_path, Job(ranks=4, hosts=4, faults=faults)).findings
    assert (finding.reason, finding.subject.rank) == ("STORAGE_SLOW", None)
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)


@pytest.mark.parametrize(
    ("job", "slow"),
    [(Job(ranks=4, hosts=4), (1,)), (Job(ranks=4, hosts=4), (0, 1)), (Job(ranks=4), (0, 1, 2, 3))],
    ids=["one host", "two of four", "all ranks of one"],
)
def test_some_hosts_blocked_on_files_are_no_slow_storage(
    tmp_path: Path, job: Job, slow: tuple[int, ...]
) -> None:
    faults = tuple(Fault("read", rank, FAULT_S, ONSET, phase="data_load") for rank in slow)
    found = reasons(solve(tmp_path, replace(job, faults=faults)))
    assert {reason for reason, _ in found} == {"DATALOADER_IO"}


def test_one_late_rank_is_no_slowness_of_all(tmp_path: Path) -> None:
    assert reasons(solve(tmp_path, Job(faults=(Fault("work", 1, FAULT_S, ONSET),)))) == [
        ("WORK_IMBALANCE", 1)
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_what_all_ranks_do_longer_in_the_first_step_is_a_cold_start(
    tmp_path: Path, first: int
) -> None:
    rows = simulate(Job(ranks=4, hosts=2))
    for row in rows:
        row["step"] += first
    path = write_rows(tmp_path / "store.duckdb", rows)
    (finding,) = check_verdict(diagnose(path, steps=(first, first))).findings
    assert (finding.reason, finding.subject.rank) == ("COLD_START", None)
    # a rank takes 0.5 s longer in its first forward pass
    assert finding.seconds.share == pytest.approx(0.5, abs=0.002)


@pytest.mark.parametrize(
    ("job", "steps"),
    [
        (Job(cold_s=0.0), (0, 0)),
        (Job(), (1, 10)),
        (Job(), (30, 40)),
        (Job(faults=(Fault("work", 1, 0.5, 0, 0),), cold_s=0.0), (0, 0)),
        (Job(faults=(Fault("contention", 1, 0.5, 0, 0),), cold_s=0.0), (0, 0)),
        (Job(steps=15), (0, 0)),
        (Job(faults=(Fault("uniform", 0, FAULT_S, ONSET),)), (ONSET, 79)),
    ],
    ids=[
        "warm from the first",
        "after the first",
        "in the middle",
        "one rank",
        "a neighbour",
        "too few warm steps",
        "all ranks later",
    ],
)
def test_other_steps_or_one_rank_are_no_cold_start(
    tmp_path: Path, job: Job, steps: tuple[int, int]
) -> None:
    found = reasons(solve(tmp_path, job, steps=steps))
    assert "COLD_START" not in {reason for reason, _ in found}


def test_the_first_step_that_a_store_has_is_not_the_jobs_first(tmp_path: Path) -> None:
    rows = simulate(Job())
    for row in rows:
        row["step"] += 2
    path = write_rows(tmp_path / "store.duckdb", rows)
    assert diagnose(path, steps=(2, 2)).findings == ()
