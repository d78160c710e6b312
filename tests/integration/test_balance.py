"""Jobs whose hosts are not told when collectives complete: who was late, by sums; and what accuses nobody.

    steps   200 of 120 ms | 200 of 180 ms        rank 1 of four costs 60 ms a step, from 24 s on

Ranks wait as over gloo, blocked, or as over NCCL: in calls of CUDA, where their threads spin and count as running.
What the real ones look like was seen on an H200 (`tests/data`, `tests/gpu`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from support.counter_cases import FAULT_S, HEALTHY_S, LENGTH_S, ONSET, ONSET_S, STEPS
from support.counters import Told, add_counters, level, tell_sensor
from support.cuda_cases import (
    ALLOCATE,
    FREE,
    GRAPH,
    LOSS,
    SYNC,
    SYNCHRONISES,
    USUAL,
    WAITS,
    Calls,
    Rank,
    calls_of,
)
from support.jobs import Fault, Job, simulate, write_rows
from support.spinning import let_spin
from support.verdicts import check_verdict

RANKS, LATE = 4, 1
# As on an H200: the waits of before are over when the new calls have waited.
READS_NUMBERS: Rank = {**USUAL, SYNC: Calls((6, 15_000), (0.077, 0.115))}
# As on an H100: memory is asked for and given back 124 times a step, for longer than the step has grown.
GIVES_BACK: Rank = {
    **USUAL,
    SYNC: Calls((2, 2), (0.060, 0.015)),
    ALLOCATE: Calls((0.1, 124), (0, 0.7 * FAULT_S)),
    FREE: Calls((0, 124), (0, 0.7 * FAULT_S)),
}
WORK = Fault("work", LATE, FAULT_S, ONSET)
READ = "device_to_host"
READS_OFTEN: Rank = {**USUAL, LOSS: Calls((8, 8), (0.0016, 0.0016), (32, 32))}


def hide_ends(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a job's records as of one that computes on GPUs: no end of a collective is known."""
    for row in rows:
        if row["name"].startswith("collective."):
            row["end_unix_ns"] = row["start_unix_ns"] + 1_000
            row["attributes"] = json.dumps({"collective.is_end_known": False})
    return rows


def find(
    folder: Path,
    faults: Iterable[Fault],
    told: Iterable[Told] = (),
    *,
    spins: bool | tuple[int, ...] = False,
    has_collectives: bool = True,
    hooks: str | None = "OLD_TORCH",
) -> Verdict:
    """Return the verdict about a job with faults and counters; all ranks spin, or some, or none.

    Without collectives it is one whose PyTorch has no hooks for them; `hooks` is the agents' reason, None where they
    say that there are hooks.
    """
    job = Job(ranks=RANKS, hosts=2, steps=STEPS, faults=tuple(faults))
    rows = hide_ends(simulate(job))
    if not has_collectives:
        rows = [row for row in rows if not row["name"].startswith("collective.")]
    who = spins if isinstance(spins, tuple) else tuple(range(RANKS)) if spins else ()
    others = [row for row in rows if row["rank"] not in who]
    rows = let_spin([row for row in rows if row["rank"] in who]) + others
    path = write_rows(folder / "store.duckdb", rows)
    add_counters(path, tuple(told), LENGTH_S if job.faults else HEALTHY_S)
    for host in range(2):
        tell_sensor(path, "nvml", "available", host)
        if not has_collectives:
            status = "available" if hooks is None else "degraded"
            tell_sensor(path, "instrumentation", status, host, hooks)
    verdict = check_verdict(diagnose(path))
    if verdict.outcome != "healthy":
        assert "MISSING_EDGE" in {item.code for item in verdict.data_quality}
    return verdict


def calls(late: Rank, others: Rank) -> list[Told]:
    """Return what all ranks call: the late one, and the others."""
    return [
        one
        for rank in range(RANKS)
        for one in calls_of(rank, rank // 2, late if rank == LATE else others)
    ]


def processes(*ranks: int, usual: int = 1) -> list[Told]:
    """Return how many processes compute on each rank's GPU: one more on those of some ranks, from the onset on."""
    return [
        Told(
            "training.gpu.processes",
            level(usual, usual + 1 if rank in ranks else usual, ONSET_S),
            rank // 2,
            rank,
            {"hw.id": f"GPU-{rank}"},
        )
        for rank in range(RANKS)
    ]


def named(verdict: Verdict) -> list[tuple[str, int | None]]:
    return [(str(one.reason), one.subject.rank) for one in verdict.findings]


@pytest.mark.parametrize(
    ("kind", "reason", "spins"),
    [
        pytest.param("work", "WORK_IMBALANCE", False, id="work, others blocked"),
        pytest.param("work", "WORK_IMBALANCE", True, id="work, others spin"),
        pytest.param("contention", "CPU_CONTENTION", False, id="contention, others blocked"),
        pytest.param("contention", "CPU_CONTENTION", True, id="contention, others spin"),
        pytest.param("service", "EXTERNAL_SERVICE", False, id="a service, others blocked"),
    ],
)
def test_rank_for_which_all_others_wait_is_named_with_what_it_did_longer(
    tmp_path: Path, kind: str, reason: str, spins: bool
) -> None:
    told = calls(USUAL, WAITS) if spins else []
    verdict = find(tmp_path, [Fault(kind, LATE, FAULT_S, ONSET)], told, spins=spins)
    (finding,) = verdict.findings
    assert named(verdict) == [(reason, LATE)]
    assert finding.seconds.share == pytest.approx(FAULT_S, rel=0.15)
    assert finding.confidence.band == "medium"
    assert verdict.predicted_step_s == pytest.approx(0.120, rel=0.1)


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        pytest.param(SYNCHRONISES, "ACCIDENTAL_SYNC", id="some"),
        pytest.param(READS_NUMBERS, "ACCIDENTAL_SYNC", id="thousands"),
        pytest.param(GIVES_BACK, "ALLOCATOR", id="for memory"),
    ],
)
def test_calls_that_wait_are_what_a_late_rank_did_longer(
    tmp_path: Path, late: Rank, reason: str
) -> None:
    verdict = find(tmp_path, [WORK], calls(late, WAITS), spins=True)
    assert named(verdict) == [(reason, LATE)]
    assert verdict.findings[0].seconds.share == pytest.approx(FAULT_S, rel=0.15)


def begins_late(one: Told) -> Told:
    """Return a sum that has grown since the job began and is first told after half of its healthy steps."""
    begun = one.value(0.0)
    return replace(one, value=lambda now: one.value(now) - begun, first_s=ONSET_S / 2)


def test_calls_of_a_kind_that_is_told_late_are_no_more_of_them(tmp_path: Path) -> None:
    """On an H100 a job's copies were first told 5 s after it had begun, and it looked as if they had become more."""
    counted = [
        begins_late(one) if one.attributes.get("training.cuda.copy.direction") == READ else one
        for one in calls(READS_OFTEN, {**READS_OFTEN, SYNC: WAITS[SYNC]})
    ]
    verdict = find(tmp_path, [WORK], counted, spins=True)
    assert named(verdict) == [("WORK_IMBALANCE", LATE)]


@pytest.mark.parametrize("usual", [1, 8])
def test_a_process_on_the_gpu_of_all_ranks_is_named_where_all_wait_for_it(
    tmp_path: Path, usual: int
) -> None:
    told = [*calls(WAITS, WAITS), *processes(*range(RANKS), usual=usual)]
    verdict = find(tmp_path, [Fault("uniform", 0, FAULT_S, ONSET)], told, spins=True)
    assert named(verdict) == [("GPU_COTENANT", None)]


def but_late(told: list[Told], first_s: float = 1e9) -> list[Told]:
    """Return counters without those of the late rank, or with those that begin late."""
    return [replace(one, first_s=first_s) if one.rank == LATE else one for one in told]


UNIFORM = Fault("uniform", 0, FAULT_S, ONSET)
TRANSFER = Fault("transfer_foreign", -1, FAULT_S, ONSET)
LAUNCHES_WAIT: Rank = {**USUAL, GRAPH: Calls((4, 4), (0.0004, 0.0604))}
ONE_MORE: Rank = {**USUAL, SYNC: Calls((2, 4), (0.030, 0.090))}


@pytest.mark.parametrize(
    ("fault", "told", "spins"),
    [
        # Slow transfers, or one slow device: NCCL's kernels wait on all ranks.
        pytest.param(UNIFORM, calls(WAITS, WAITS), True, id="all wait for their devices"),
        pytest.param(
            UNIFORM, [*calls(WAITS, WAITS), *processes(LATE)], True, id="a process on one GPU"
        ),
        pytest.param(
            UNIFORM,
            [*calls(USUAL, USUAL), *processes(*range(RANKS))],
            True,
            id="a process on all GPUs, and no longer waits",
        ),
        pytest.param(WORK, [], True, id="nobody counts the waits of those that spin"),
        pytest.param(WORK, calls(WAITS, WAITS), True, id="it waits as long as the others"),
        pytest.param(TRANSFER, [], False, id="all are blocked longer"),
        pytest.param(UNIFORM, but_late(calls(WAITS, WAITS)), True, id="one is not counted"),
        pytest.param(
            UNIFORM, but_late(calls(WAITS, WAITS), ONSET_S - 4.0), True, id="one is counted late"
        ),
        pytest.param(
            replace(WORK, rank=0),
            but_late(calls(WAITS, WAITS)),
            True,
            id="one is not counted, and another is late",
        ),
        pytest.param(TRANSFER, [], (LATE,), id="one spins, the others are blocked"),
        pytest.param(TRANSFER, calls(USUAL, WAITS), True, id="one polls"),
        pytest.param(TRANSFER, calls(LAUNCHES_WAIT, WAITS), True, id="one waits to launch"),
        pytest.param(UNIFORM, calls(ONE_MORE, WAITS), True, id="one waits once or twice more"),
    ],
)
def test_where_sums_do_not_tell_nobody_is_named(
    tmp_path: Path, fault: Fault, told: list[Told], spins: bool
) -> None:
    verdict = find(tmp_path, [fault], told, spins=spins)
    assert (verdict.outcome, named(verdict)) == ("insufficient_evidence", [])


def test_a_healthy_job_is_healthy(tmp_path: Path) -> None:
    assert find(tmp_path, [], calls(USUAL, USUAL), spins=True).outcome == "healthy"


def test_two_late_ranks_share_what_was_lost_and_neither_alone_gains_it(tmp_path: Path) -> None:
    both = [Fault("work", rank, FAULT_S, ONSET) for rank in (0, LATE)]
    verdict = find(tmp_path, both)
    assert sorted(named(verdict)) == [("WORK_IMBALANCE", 0), ("WORK_IMBALANCE", LATE)]
    shares = [one.seconds.share or 0.0 for one in verdict.findings]
    assert sum(shares) == pytest.approx(FAULT_S, rel=0.15)
    assert verdict.predicted_step_s == pytest.approx(0.180, rel=0.05)


@pytest.mark.parametrize("hooks", ["OLD_TORCH", None])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param(WORK, "WORK_IMBALANCE", id="work"),
        pytest.param(replace(WORK, kind="contention"), "CPU_CONTENTION", id="contention"),
        pytest.param(replace(WORK, phase="data_load"), "DATALOADER_CPU", id="decode"),
        pytest.param(replace(WORK, kind="service"), "EXTERNAL_SERVICE", id="a service"),
    ],
)
def test_late_rank_is_named_where_no_collective_is_told_at_all(
    tmp_path: Path, fault: Fault, reason: str, hooks: str | None
) -> None:
    """Also where an agent's own PyTorch, other than the ranks', would have hooks for collectives."""
    verdict = find(tmp_path, [fault], has_collectives=False, hooks=hooks)
    assert named(verdict) == [(reason, LATE)]
    assert verdict.findings[0].seconds.share == pytest.approx(FAULT_S, rel=0.15)
    assert verdict.predicted_step_s == pytest.approx(0.120, rel=0.1)


@pytest.mark.parametrize("hooks", ["OLD_TORCH", None])
@pytest.mark.parametrize(
    ("fault", "spins", "outcome"),
    [
        pytest.param(None, False, "healthy", id="healthy"),
        pytest.param(
            WORK, True, "insufficient_evidence", id="the others spin, and nobody counts it"
        ),
        pytest.param(TRANSFER, (LATE,), "insufficient_evidence", id="one spins, the others block"),
    ],
)
def test_nobody_is_named_where_no_collective_is_told_and_sums_do_not_tell(
    tmp_path: Path,
    fault: Fault | None,
    spins: bool | tuple[int, ...],
    outcome: str,
    hooks: str | None,
) -> None:
    faults = [] if fault is None else [fault]
    verdict = find(tmp_path, faults, spins=spins, has_collectives=False, hooks=hooks)
    assert (verdict.outcome, named(verdict)) == (outcome, [])
