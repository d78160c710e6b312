"""A job on devices, of which the host sees no collective end: who was late, by the device's times of measured steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.text import render_text
from rootwalk.graph.verdict import to_object
from support.jobs import NS, START_UNIX_NS, TRANSFER_S, Fault, Job, simulate, write_rows
from support.spinning import let_spin
from support.verdicts import check_schema

EVERY = 4
STEPS = 240
LATE_S = 0.06


Known = Callable[[int, int], bool]
"""Whether a rank measures a step."""


def in_fourths(step: int, _rank: int) -> bool:
    return step % EVERY == 0


def on_devices(job: Job, known: Known = in_fourths) -> list[dict[str, Any]]:
    """Return the rows of a job as its host would tell them: collectives end when issued, some steps are measured.

    Its ranks spin while they wait, and nobody counts that.
    """
    return told_by_host(let_spin(simulate(job)), known)


def told_by_host(rows: list[dict[str, Any]], known: Known) -> list[dict[str, Any]]:
    """Return the same without the ends of collectives, but with their times on the device in measured steps.

    On a device's stream one begins when the one before has ended, whenever the host has issued it.
    """
    ended_ns: dict[tuple[int, str], int] = {}
    collectives = [row for row in rows if row["name"].startswith("collective.")]
    for row in sorted(collectives, key=lambda row: (row["rank"], row["end_unix_ns"])):
        stream = (row["rank"], row["communicator_id"])
        attributes: dict[str, Any] = {"collective.is_end_known": False}
        if known(row["step"], row["rank"]):
            began_ns = max(row["start_unix_ns"], ended_ns.get(stream, 0))
            attributes["collective.device_time"] = (row["end_unix_ns"] - began_ns) / NS
        ended_ns[stream] = row["end_unix_ns"]
        row["end_unix_ns"] = row["start_unix_ns"] + 1_000
        row["attributes"] = json.dumps(attributes)
    return rows


def in_buckets(late_s: Callable[[int, int], float], work: Callable[[int, int], float]) -> Any:
    """Return the rows of four ranks whose all-reduces computation hides: 100 ms forward, then 25 buckets of 8 ms.

    Args:
        late_s: How long a rank waits for something in a step, before its forward pass.
        work: What a rank's work takes in a step, as a part of the usual.
    """
    random = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    begin_s = 0.0

    def add(name: str, step: int, rank: int, times_s: tuple[float, float], **columns: Any) -> None:
        start_ns, end_ns = (START_UNIX_NS + round(time_s * NS) for time_s in times_s)
        rows.append(
            {
                "trace_id": f"{step:032x}",
                "span_id": f"{len(rows):016x}",
                "name": name,
                "kind": "INTERNAL",
                "start_unix_ns": start_ns,
                "end_unix_ns": end_ns,
                "job": "j1",
                "attempt": 0,
                "step": step,
                "rank": rank,
                "local_rank": rank,
                "world_size": 4,
                "pid": 1000 + rank,
                "host_id": "host-id-0",
                "host_name": "host-0",
                **columns,
            }
        )

    for step in range(STEPS):
        factors = [work(step, rank) * float(random.uniform(0.999, 1.001)) for rank in range(4)]
        done_s = 0.0
        for bucket in range(25):
            issued_s = [
                begin_s + late_s(step, rank) + (0.1 + 0.008 * (bucket + 1)) * factors[rank]
                for rank in range(4)
            ]
            done_s = max(*issued_s, done_s) + 0.001
            for rank, issue_s in enumerate(issued_s):
                columns = {
                    "communicator_id": "c0",
                    "communicator_name": "default_pg",
                    "communicator_size": 4,
                    "sequence": 25 * step + bucket + 1,
                    "operation": "all_reduce",
                    "is_point_to_point": False,
                }
                add("collective.all_reduce", step, rank, (issue_s, done_s), **columns)
        for rank in range(4):
            add("training.rank_step", step, rank, (begin_s, done_s + 0.02), outcome="complete")
        begin_s = done_s + 0.02
    return told_by_host(rows, in_fourths)


def solve(folder: Path, rows: list[dict[str, Any]]) -> Verdict:
    store = write_rows(folder / "store.duckdb", rows)
    verdict = diagnose(store)
    check_schema(to_object(verdict))
    assert all(len(line) <= 80 for line in render_text(verdict).splitlines())
    with duckdb.connect(str(store)) as connection:
        for finding in verdict.findings:
            for row in finding.evidence:
                assert connection.execute(str(row.query)).fetchall()
        kept = [row[0] for row in connection.execute("SELECT id FROM findings").fetchall()]
    assert sorted(kept) == sorted(finding.id for finding in verdict.findings)
    return verdict


@pytest.mark.parametrize("first", [0, STEPS // 2])
def test_the_late_rank_is_named_by_the_shortest_times(tmp_path: Path, first: int) -> None:
    fault = Fault("work", 2, LATE_S, first, phase="forward")
    job = Job(ranks=4, steps=STEPS, jitter_ratio=0.05, faults=(fault,))
    verdict = solve(tmp_path, on_devices(job))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank, finding.layer) == ("UNKNOWN_HOST", 2, None)
    assert (finding.method, verdict.kind) == ("flow_only", "slow")
    assert finding.seconds.share is not None
    assert LATE_S * 0.9 <= finding.seconds.share <= LATE_S * 1.1
    assert finding.confidence.band == ("medium" if first else "low")
    assert verdict.victims.ranks == (0, 1, 3)
    # The window and what was lost are of the job's own steps, the measured ones and those between them.
    window = verdict.window
    assert window.first_step is not None
    assert window.last_step is not None
    assert window.start_unix_ns is not None
    assert window.first_step % EVERY == 0
    assert abs(window.first_step - first) <= 4 * EVERY
    assert window.last_step == STEPS - EVERY
    assert window.start_unix_ns >= START_UNIX_NS
    assert finding.lost.steps == window.last_step - window.first_step + 1
    onset = None if finding.onset is None else finding.onset.step
    assert onset == (window.first_step if first else None)


def test_the_evidence_is_the_device_s_time(tmp_path: Path) -> None:
    fault = Fault("work", 2, LATE_S, 0, phase="forward")
    verdict = solve(tmp_path, on_devices(Job(ranks=4, steps=STEPS, faults=(fault,))))
    (row,) = verdict.findings[0].evidence
    with duckdb.connect(str(tmp_path / "store.duckdb")) as connection:
        rows = connection.execute(str(row.query)).fetchall()
    assert {(rank, step % EVERY) for step, rank, *_ in rows} == {(2, 0)}
    assert sum(seconds for *_, seconds in rows) / (STEPS // EVERY) == pytest.approx(
        row.value, rel=0.1
    )


def test_clocks_that_differ_change_nothing(tmp_path: Path) -> None:
    fault = Fault("work", 2, LATE_S, STEPS // 2, phase="forward")
    job = Job(ranks=4, steps=STEPS, hosts=4, skew_s=(0.0, 0.05, -0.05, 0.1), faults=(fault,))
    verdict = solve(tmp_path, on_devices(job))
    assert [finding.subject.rank for finding in verdict.findings] == [2]
    even = Job(ranks=4, steps=STEPS, hosts=4, skew_s=(0.0, 0.05, -0.05, 0.1), jitter_ratio=0.05)
    (tmp_path / "even").mkdir()
    assert solve(tmp_path / "even", on_devices(even)).findings == ()


def test_slower_transfers_are_no_rank_s_fault(tmp_path: Path) -> None:
    fault = Fault("transfer_idle", 2, LATE_S, STEPS // 2)
    verdict = solve(tmp_path, on_devices(Job(ranks=4, steps=STEPS, sensor=None, faults=(fault,))))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("UNKNOWN_NET", None)
    assert finding.seconds.share == pytest.approx(LATE_S, rel=0.1)


def test_groups_beside_the_one_of_all_hide_nobody(tmp_path: Path) -> None:
    fault = Fault("work", 2, LATE_S, STEPS // 2, phase="forward")
    late = solve(tmp_path, in_pairs(Job(ranks=4, steps=STEPS, jitter_ratio=0.05, faults=(fault,))))
    assert [(one.reason, one.subject.rank) for one in late.findings] == [("UNKNOWN_HOST", 2)]
    (tmp_path / "even").mkdir()
    even = in_pairs(Job(ranks=4, steps=STEPS, jitter_ratio=0.05))
    assert solve(tmp_path / "even", even).findings == ()


def in_pairs(job: Job) -> list[dict[str, Any]]:
    """Return the rows of a job whose first all-reduce is one of ranks 0 and 1, and one of 2 and 3."""
    rows = let_spin(simulate(job))
    first = [row for row in rows if row["name"].startswith("collective.") and row["sequence"] % 2]
    issued_ns: dict[tuple[int, int], int] = {}
    for row in first:
        pair = (row["step"], row["rank"] // 2)
        issued_ns[pair] = max(issued_ns.get(pair, 0), row["start_unix_ns"])
    for row in first:
        row["communicator_id"] = row["communicator_name"] = f"pair-{row['rank'] // 2}"
        row["communicator_size"] = 2
        row["end_unix_ns"] = issued_ns[row["step"], row["rank"] // 2] + round(TRANSFER_S * NS)
    return told_by_host(rows, in_fourths)


def test_ranks_that_are_even_accuse_nobody(tmp_path: Path) -> None:
    verdict = solve(tmp_path, on_devices(Job(ranks=4, steps=STEPS, jitter_ratio=0.05)))
    assert verdict.findings == ()


@pytest.mark.parametrize("steps", [1, 2 * EVERY + 1])
def test_a_rank_that_was_late_once_is_not_accused(tmp_path: Path, steps: int) -> None:
    fault = Fault("work", 2, 0.5, STEPS // 2, STEPS // 2 + steps - 1, phase="forward")
    job = Job(ranks=4, steps=STEPS, jitter_ratio=0.05, faults=(fault,), sensor=None)
    assert solve(tmp_path, on_devices(job)).findings == ()


def test_a_rank_that_is_late_in_some_steps_is_not_accused(tmp_path: Path) -> None:
    fault = Fault("work", 2, LATE_S, 0, phase="forward", probability=0.3)
    job = Job(ranks=4, steps=STEPS, jitter_ratio=0.05, faults=(fault,), sensor=None)
    assert solve(tmp_path, on_devices(job)).findings == ()


def test_a_rank_without_times_does_not_hide_the_late_one(tmp_path: Path) -> None:
    fault = Fault("work", 2, LATE_S, 0, phase="forward")
    rows = on_devices(
        Job(ranks=4, steps=STEPS, faults=(fault,)),
        lambda step, rank: step % EVERY == 0 and rank != 1,
    )
    verdict = solve(tmp_path, rows)
    assert [finding.subject.rank for finding in verdict.findings] == [2]
    assert verdict.findings[0].confidence.band == "low"


@pytest.mark.parametrize("late", [2, None])
def test_steps_that_a_rank_has_not_measured_are_left_out(tmp_path: Path, late: int | None) -> None:
    faults = () if late is None else (Fault("work", late, LATE_S, 0, phase="forward"),)
    rows = on_devices(
        Job(ranks=4, steps=STEPS, jitter_ratio=0.05, faults=faults),
        lambda step, rank: step % EVERY == 0 and (rank != 1 or step % (2 * EVERY) == 0),
    )
    named = [finding.subject.rank for finding in solve(tmp_path, rows).findings]
    assert named == ([] if late is None else [late])


def test_a_few_measured_steps_accuse_nobody(tmp_path: Path) -> None:
    fault = Fault("work", 2, LATE_S, 0, phase="forward")
    rows = on_devices(Job(ranks=4, steps=STEPS, faults=(fault,)), lambda step, _: step % 32 == 0)
    assert solve(tmp_path, rows).findings == ()


def test_messages_accuse_nobody(tmp_path: Path) -> None:
    fault = Fault("work", 2, LATE_S, 0, phase="forward")
    rows = on_devices(Job(ranks=4, steps=STEPS, faults=(fault,), sensor=None))
    for row in rows:
        if row["name"].startswith("collective.") and row["sequence"] % 2:
            row |= {"name": "collective.recv", "operation": "recv", "is_point_to_point": True}
            row["communicator_id"] = "c1"
    assert solve(tmp_path, rows).findings == ()


def test_ends_that_the_host_knows_are_not_judged_again(tmp_path: Path) -> None:
    fault = Fault("work", 2, LATE_S, 0, phase="forward")
    rows = on_devices(Job(ranks=4, steps=STEPS, faults=(fault,), sensor=None))
    for row in rows:
        if row["name"].startswith("collective."):
            row["attributes"] = row["attributes"].replace("false", "true")
    assert [one.method for one in solve(tmp_path, rows).findings if one.method == "flow_only"] == []


def test_one_delay_that_many_hidden_collectives_repeat_accuses_nobody(tmp_path: Path) -> None:
    rows = in_buckets(lambda _, rank: 0.003 * (rank == 2), lambda _, __: 1.0)
    # Its sum is more than a tenth of a step, and what the job loses by it is 3 ms.
    times_s: dict[int, float] = {}
    for row in rows:
        device_s = json.loads(row.get("attributes", "{}")).get("collective.device_time", 0.0)
        times_s[row["rank"]] = times_s.get(row["rank"], 0.0) + device_s * EVERY / STEPS
    assert times_s[0] - times_s[2] > 0.06
    assert solve(tmp_path, rows).findings == ()


def test_nor_where_everybody_has_become_slower(tmp_path: Path) -> None:
    rows = in_buckets(
        lambda step, rank: 0.003 * (rank == 2 and step >= STEPS // 2),
        lambda step, _: 1.15 if step >= STEPS // 2 else 1.0,
    )
    assert solve(tmp_path, rows).findings == ()


def test_a_slow_device_is_named_with_no_more_than_steps_have_grown(tmp_path: Path) -> None:
    rows = in_buckets(
        lambda _, __: 0.0,
        lambda step, rank: 1.2 if rank == 2 and step >= STEPS // 2 else 1.0,
    )
    (finding,) = solve(tmp_path, rows).findings
    assert (finding.reason, finding.subject.rank) == ("UNKNOWN_HOST", 2)
    assert finding.seconds.share is not None
    assert 0.05 <= finding.seconds.share <= 0.063
