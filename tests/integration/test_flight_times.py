"""Flight Recorder dumps with NCCL's timing into a store: who came late in a job that is slow and hangs nowhere.

The dumps are made in the documented format; those that a GPU's ranks wrote are in `test_hardware_records`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.text import render_text
from rootwalk.graph.verdict import to_object
from support.flight_dumps import FlightJob
from support.flight_times import timed_dumps, write_dumps
from support.inspector_logs import DDP, TENSOR_DATA, InspectorJob, Late, SlowGroup
from support.jobs import Fault, Job, write_job
from support.stores import query_rows
from support.verdicts import check_schema


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.duckdb"


def put(store: Path, *paths: Path, options: tuple[str, ...] = ()) -> int:
    names = [str(path) for path in paths]
    return main(["import", "flight-recorder", *names, "--store", str(store), "--quiet", *options])


def solve(store: Path) -> Verdict:
    verdict = diagnose(store)
    check_schema(to_object(verdict))
    assert all(len(line) <= 80 for line in render_text(verdict).splitlines())
    return verdict


def without_cost(verdict: Verdict) -> dict[str, Any]:
    return {key: value for key, value in to_object(verdict).items() if key != "cost"}


def named(verdict: Verdict) -> list[tuple[str, int | None]]:
    return [(finding.reason, finding.subject.rank) for finding in verdict.findings]


@pytest.mark.parametrize("is_json", [False, True])
def test_the_rank_with_the_shortest_durations_is_named(
    store: Path, tmp_path: Path, is_json: bool
) -> None:
    job = InspectorJob(ranks=4, tensor=1, iterations=60, late=(Late(2, 0.04, 30),)).run()
    assert put(store, *write_dumps(timed_dumps(job), tmp_path / "dumps", is_json=is_json)) == 0
    verdict = solve(store)
    (finding,) = verdict.findings
    assert named(verdict) == [("UNKNOWN_HOST", 2)]
    assert (finding.method, finding.layer) == ("flow_only", None)
    assert finding.seconds.share == pytest.approx(0.04, rel=0.1)
    assert finding.confidence.band in {"low", "medium"}
    assert verdict.victims.ranks == (0, 1, 3)
    with duckdb.connect(str(store)) as connection:
        assert len(connection.execute(str(finding.evidence[0].query)).fetchall()) == 2 * 60


def test_every_wait_is_the_own_duration_minus_the_shortest(store: Path, tmp_path: Path) -> None:
    job = InspectorJob(ranks=4, tensor=1, iterations=12, late=(Late(1, 0.05),)).run()
    dumps = timed_dumps(job)
    put(store, *write_dumps(dumps, tmp_path / "dumps"))
    rows = query_rows(
        store,
        "SELECT rank, sequence, is_end_known, bytes, backend, d - min(d) OVER (PARTITION BY sequence) FROM (SELECT c.*,"
        " (s.attributes ->> '$.\"collective.device_time\"')::DOUBLE AS d"
        " FROM collectives c JOIN spans s USING (trace_id, span_id)) ORDER BY rank, sequence",
    )
    took = {
        (rank, entry["collective_seq_id"]): entry["duration_ms"] / 1e3
        for rank, dump in dumps.items()
        for entry in dump["entries"]
    }
    assert len(rows) == 4 * 2 * 12
    for rank, sequence, is_end_known, size, backend, wait_s in rows:
        shortest = min(took[other, sequence] for other in range(4))
        assert wait_s == pytest.approx(took[rank, sequence] - shortest, abs=1e-9)
        assert (is_end_known, backend) == (False, "nccl")
        assert size == DDP[(sequence - 1) % 2].size_bytes


def test_nobody_is_named_where_durations_are_even(store: Path, tmp_path: Path) -> None:
    job = InspectorJob(ranks=4, tensor=1, iterations=60).run()
    put(store, *write_dumps(timed_dumps(job), tmp_path / "dumps"))
    verdict = solve(store)
    assert (verdict.outcome, verdict.findings) == ("healthy", ())


def test_clocks_that_are_seconds_apart_change_nothing(store: Path, tmp_path: Path) -> None:
    job = InspectorJob(ranks=4, tensor=1, iterations=60, late=(Late(2, 0.04, 30),)).run()
    apart = {0: -7.0, 1: 3.5, 3: 12.0}
    put(store, *write_dumps(timed_dumps(job, apart_s=apart), tmp_path / "dumps"))
    assert named(solve(store)) == [("UNKNOWN_HOST", 2)]


def test_rings_of_different_lengths_are_judged_by_what_all_hold(
    store: Path, tmp_path: Path
) -> None:
    job = InspectorJob(ranks=4, tensor=1, iterations=90, late=(Late(2, 0.04),)).run()
    put(store, *write_dumps(timed_dumps(job, ring={0: 70, 3: 100}), tmp_path / "dumps"))
    verdict = solve(store)
    assert named(verdict) == [("UNKNOWN_HOST", 2)]
    assert "UNEQUAL_MEMBERS" not in {item.code for item in verdict.data_quality}


def test_a_rank_without_times_does_not_hide_the_late_one(store: Path, tmp_path: Path) -> None:
    job = InspectorJob(ranks=4, tensor=1, iterations=60, late=(Late(2, 0.04, 30),)).run()
    put(store, *write_dumps(timed_dumps(job, untimed=frozenset({1})), tmp_path / "dumps"))
    verdict = solve(store)
    assert named(verdict) == [("UNKNOWN_HOST", 2)]
    (missing,) = [item for item in verdict.data_quality if item.code == "RANK_MISSING"]
    assert "1 of 4 ranks (1)" in missing.text


def test_ranks_of_tensor_and_data_groups(store: Path, tmp_path: Path) -> None:
    job = InspectorJob(ranks=8, calls=TENSOR_DATA, iterations=60, late=(Late(5, 0.04, 30),)).run()
    put(store, *write_dumps(timed_dumps(job), tmp_path / "dumps"))
    assert named(solve(store)) == [("UNKNOWN_HOST", 5)]


def test_a_slow_link_is_no_late_rank(store: Path, tmp_path: Path) -> None:
    slow = (SlowGroup("data", 4, 1, 30),)
    job = InspectorJob(ranks=8, calls=TENSOR_DATA, iterations=60, slow=slow).run()
    put(store, *write_dumps(timed_dumps(job), tmp_path / "dumps"))
    assert named(solve(store)) == [("UNKNOWN_NET", None)]


def test_dumps_without_times_make_no_span(store: Path, tmp_path: Path) -> None:
    job = InspectorJob(ranks=4, tensor=1, iterations=20, late=(Late(2, 0.04),)).run()
    put(store, *write_dumps(timed_dumps(job, untimed=frozenset(range(4))), tmp_path / "dumps"))
    verdict = solve(store)
    assert (verdict.outcome, verdict.kind) == ("healthy", None)
    assert query_rows(store, "SELECT count(*) FROM spans") == [(0,)]


def test_a_hang_is_a_hang_whatever_was_timed_before(store: Path, tmp_path: Path) -> None:
    job = InspectorJob(ranks=4, tensor=1, iterations=40, late=(Late(2, 0.04),)).run()
    dumps = timed_dumps(job)
    for rank in (0, 1, 3):
        last = dumps[rank]["entries"][-1]
        waits = {"record_id": last["record_id"] + 1, "state": "started", "retired": False}
        waits |= {"collective_seq_id": last["collective_seq_id"] + 1}
        waits |= {"time_discovered_completed_ns": 0}
        entry = {**last, **waits}
        del entry["duration_ms"]
        dumps[rank]["entries"].append(entry)
    put(store, *write_dumps(dumps, tmp_path / "dumps"))
    (finding,) = solve(store).findings
    assert (finding.reason, finding.subject.ranks, finding.method) == ("NOT_JOINED", (2,), "hang")


@pytest.mark.parametrize("duration_ms", [0.0, -1.0, float("nan"), float("inf"), 1e12, True, "7"])
def test_a_duration_that_cannot_be_is_none(
    store: Path, tmp_path: Path, duration_ms: object
) -> None:
    dumps = timed_dumps(InspectorJob(ranks=2, tensor=1, iterations=2).run())
    dumps[0]["entries"][1]["duration_ms"] = duration_ms
    put(store, *write_dumps(dumps, tmp_path / "dumps"))
    assert query_rows(store, "SELECT rank, count(*) FROM collectives GROUP BY 1 ORDER BY 1") == [
        (0, 3),
        (1, 4),
    ]


def test_importing_again_and_another_dump_of_the_same_launch(store: Path, tmp_path: Path) -> None:
    job = InspectorJob(ranks=4, tensor=1, iterations=60, late=(Late(2, 0.04, 30),)).run()
    dumps = timed_dumps(job)
    early = {rank: {**dump, "entries": dump["entries"][:80]} for rank, dump in dumps.items()}
    put(store, *write_dumps(dumps, tmp_path / "late"))
    first = without_cost(solve(store))
    put(store, *write_dumps(dumps, tmp_path / "late"))
    assert without_cost(solve(store)) == first
    put(store, *write_dumps(early, tmp_path / "early"))
    assert query_rows(store, "SELECT count(*) FROM collectives") == [(4 * 2 * 60,)]
    assert named(solve(store)) == [("UNKNOWN_HOST", 2)]


def test_timed_dumps_beside_the_steps_of_the_same_job_change_nothing(tmp_path: Path) -> None:
    store = write_job(tmp_path / "store.duckdb", Job(faults=(Fault("contention", 1, 0.060, 40),)))
    before = without_cost(solve(store))
    job = InspectorJob(ranks=2, tensor=1, iterations=60, late=(Late(0, 0.04),)).run()
    put(store, *write_dumps(timed_dumps(job), tmp_path / "dumps"), options=("--job", "j1"))
    assert json.dumps(without_cost(solve(store))) == json.dumps(before)


def test_a_batch_is_one_collective(store: Path, tmp_path: Path) -> None:
    # Coalesced operations share a number; of those that the recorder times, the last has the time of all.
    job = FlightJob(2, {"0": range(2)})
    for rank in (0, 1):
        job.call(rank, "0", "all_gather", state="completed")
        job.call(rank, "0", "coalesced", state="completed")
        first, second = job.entries[rank]
        second["collective_seq_id"] = first["collective_seq_id"]
        for entry, duration_ms in ((first, 1.0), (second, 5.0)):
            entry["time_discovered_completed_ns"] = entry["time_created_ns"] + 10_000_000
            entry["duration_ms"] = duration_ms
    dumps = {rank: job.dump(rank, has_history=True) for rank in (0, 1)}
    put(store, *write_dumps(dumps, tmp_path / "dumps"))
    assert query_rows(store, "SELECT rank, operation FROM collectives ORDER BY rank") == [
        (0, "coalesced"),
        (1, "coalesced"),
    ]
