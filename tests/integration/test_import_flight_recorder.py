"""Flight Recorder dumps into a store, and the verdict that it gives: two public hangs, and made-up ones."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.text import render_text
from rootwalk.graph.verdict import to_object
from rootwalk.otel_receiver.retention import Retention, delete_old
from rootwalk.otel_receiver.store import writing
from support.flight_dumps import START_NS, FlightJob
from support.jobs import Fault, Job, write_job
from support.live_check import note_store
from support.verdicts import check_schema

DAY_S = 86_400.0
CASES = Path(__file__).parents[1] / "data" / "nvrx_flight_recorder" / "fr_traces"


def put(store: Path, *paths: Path, options: tuple[str, ...] = ()) -> int:
    names = [str(path) for path in paths]
    code = main(["import", "flight-recorder", *names, "--store", str(store), "--quiet", *options])
    if code == 0:
        note_store(store, "true")
    return code


def solve(store: Path) -> Verdict:
    verdict = diagnose(store)
    check_schema(to_object(verdict))
    assert all(len(line) <= 80 for line in render_text(verdict).splitlines())
    return verdict


def without_cost(verdict: Verdict) -> dict[str, Any]:
    return {key: value for key, value in to_object(verdict).items() if key != "cost"}


@pytest.mark.parametrize(
    ("case", "ranks", "layer", "reason", "owner"),
    [
        ("gpu_error_1st", (12, 14), "device", "GPU_HANG", "node"),
        ("lock_gil_1st", (9, 14), "application", "NOT_JOINED", "job"),
    ],
)
def test_public_hangs_name_all_faulty_ranks_and_no_victim(
    tmp_path: Path, case: str, ranks: tuple[int, ...], layer: str, reason: str, owner: str
) -> None:
    store = tmp_path / "store.duckdb"
    assert put(store, *sorted((CASES / case).glob("_dump_*"))) == 0
    verdict = solve(store)
    assert (verdict.outcome, verdict.kind, verdict.job.world_size) == ("finding", "hang", 16)
    assert verdict.syndrome == "non_communication_hang"
    (finding,) = verdict.findings
    assert (finding.subject.ranks, finding.layer) == (ranks, layer)
    assert (finding.reason, finding.owner, finding.method) == (reason, owner, "hang")
    assert finding.confidence.band == "high"
    assert "UNKNOWN_NET" in {item.reason for item in finding.excluded}
    assert verdict.victims.ranks == tuple(sorted(set(range(16)) - set(ranks)))
    assert verdict.victims.waited_s is None
    assert verdict.hang is not None
    assert set(ranks) <= {*verdict.hang.absent, *verdict.hang.joined}
    true_ranks = (CASES / case / "fault_injection.log").read_text().splitlines()[0]
    assert true_ranks == f"Fault ranks: {list(ranks)}"


def test_the_absent_are_told_apart_from_those_that_joined(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    put(store, *sorted((CASES / "lock_gil_1st").glob("_dump_*")))
    hang = solve(store).hang
    assert hang is not None
    assert (hang.communicator, hang.sequence) == ("EXPERT_MODEL_PARALLEL_GROUP", 45265)
    assert (hang.operation, hang.absent) == ("all_to_all", (9, 14))
    assert hang.joined == (8, 10, 11, 12, 13, 15)


def test_a_finding_rests_on_rows_of_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    put(store, *sorted((CASES / "gpu_error_1st").glob("_dump_*")), options=("--job", "o'brien"))
    (finding,) = solve(store).findings
    with duckdb.connect(str(store)) as connection:
        edges = connection.execute("SELECT source_id, kind FROM edges").fetchall()
        nodes = [row[0] for row in connection.execute("SELECT id FROM nodes").fetchall()]
        for row in finding.evidence:
            assert connection.execute(str(row.query)).fetchall() == [(row.value,)]
        assert connection.execute("SELECT id FROM findings").fetchall() == [(finding.id,)]
    assert finding.subject.node in nodes
    assert {(link.node, link.edge) for link in finding.chain} <= set(edges)


def test_graph_of_a_job_that_has_only_dumps_goes_with_them(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    put(store, *sorted((CASES / "gpu_error_1st").glob("_dump_*")))
    solve(store)
    kept = []
    for days in (0, 2):
        with writing(store) as connection:
            delete_old(
                connection, Retention(age_s=DAY_S), time.time_ns() + round(days * DAY_S * 1e9)
            )
            kept.append(connection.execute("SELECT count(*) FROM nodes").fetchall()[0][0])
    assert kept[0] > 0
    assert kept[1] == 0


def test_importing_again_changes_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    paths = sorted((CASES / "lock_gil_1st").glob("_dump_*"))
    put(store, *paths)
    first = without_cost(solve(store))
    assert put(store, *paths) == 0
    assert without_cost(solve(store)) == first


def test_a_broken_file_is_named_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = FlightJob(8, {"0": range(8)})
    job.call_all((0, 1, 2, 4, 5, 6, 7), "0")
    paths = job.write(tmp_path)
    paths[7].write_bytes(paths[7].read_bytes()[:100])
    store = tmp_path / "store.duckdb"
    assert put(store, *paths) == 1
    said = capsys.readouterr().err
    assert "nccl_trace_rank_7" in said
    assert "byte 100" in said
    verdict = solve(store)
    (finding,) = verdict.findings
    assert finding.subject.ranks == (3,)
    assert finding.confidence.coverage == 7 / 8
    assert [item.code for item in verdict.data_quality] == ["RANK_MISSING", "BROKEN_FILE"]
    assert "nccl_trace_rank_7" in verdict.data_quality[1].text
    first = without_cost(verdict)
    put(store, *paths)
    assert without_cost(solve(store)) == first


def test_a_broken_file_that_is_whole_now_is_told_no_more(tmp_path: Path) -> None:
    job = FlightJob(4, {"0": range(4)})
    paths = job.write(tmp_path)
    whole = paths[2].read_bytes()
    paths[2].write_bytes(whole[:100])
    store = tmp_path / "store.duckdb"
    put(store, *paths)
    assert [item.code for item in solve(store).data_quality] == ["RANK_MISSING", "BROKEN_FILE"]
    paths[2].write_bytes(whole)
    put(store, paths[2])
    verdict = solve(store)
    assert (verdict.outcome, verdict.data_quality) == ("healthy", ())


@pytest.mark.parametrize("is_json", [False, True])
def test_nothing_unfinished_is_healthy(tmp_path: Path, is_json: bool) -> None:
    store = tmp_path / "store.duckdb"
    put(store, *FlightJob(4, {"0": range(4)}).write(tmp_path, is_json=is_json))
    verdict = solve(store)
    assert (verdict.outcome, verdict.kind, verdict.hang) == ("healthy", None, None)
    assert render_text(verdict) == "healthy: no rank has an unfinished operation\n"


def test_nothing_unfinished_with_dumps_missing_is_not_enough(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    put(store, *FlightJob(4, {"0": range(4)}).write(tmp_path)[:3])
    verdict = solve(store)
    assert (verdict.outcome, verdict.kind) == ("insufficient_evidence", None)
    assert [item.code for item in verdict.data_quality] == ["RANK_MISSING"]
    assert "no operation that hangs" in " ".join(render_text(verdict).split())


def test_an_operation_that_all_have_joined_is_not_enough(tmp_path: Path) -> None:
    job = FlightJob(4, {"0": range(4)})
    job.call_all(range(4), "0")
    store = tmp_path / "store.duckdb"
    put(store, *job.write(tmp_path))
    verdict = solve(store)
    assert (verdict.outcome, verdict.kind) == ("insufficient_evidence", "hang")
    assert verdict.hang is not None
    assert verdict.hang.joined == (0, 1, 2, 3)
    assert "all_reduce #4 of GROUP_0 hangs" in render_text(verdict)


def test_an_older_dump_is_not_held_against_its_rank(tmp_path: Path) -> None:
    job = FlightJob(3, {"0": range(3)})
    job.call_all((1, 2), "0")
    job.finish((1,), "0")
    store = tmp_path / "store.duckdb"
    put(store, *job.write(tmp_path))
    verdict = solve(store)
    assert (verdict.outcome, verdict.kind) == ("insufficient_evidence", "hang")
    assert [item.code for item in verdict.data_quality] == ["UNEQUAL_MEMBERS"]
    assert verdict.hang is not None
    assert verdict.hang.absent == ()


def test_a_file_written_before_the_others_called_is_not_held_against_its_rank(
    tmp_path: Path,
) -> None:
    job = FlightJob(3, {"0": range(3)})
    job.call_all((1, 2), "0")
    paths = job.write(tmp_path)
    for times, outcome, codes in (
        (START_NS - 60 * 10**9, "insufficient_evidence", ["CLOCK_UNALIGNED"]),
        (START_NS + 600 * 10**9, "finding", []),
    ):
        os.utime(paths[0], ns=(times, times))
        store = tmp_path / f"{outcome}.duckdb"
        put(store, *paths)
        verdict = solve(store)
        assert verdict.outcome == outcome
        assert [item.code for item in verdict.data_quality] == codes


def test_the_same_dump_in_a_newer_file_is_the_same(tmp_path: Path) -> None:
    job = FlightJob(3, {"0": range(3)})
    job.call_all((1, 2), "0")
    paths = job.write(tmp_path)
    store = tmp_path / "store.duckdb"
    put(store, *paths)
    first = without_cost(solve(store))
    for path in paths:
        os.utime(path, ns=(START_NS, START_NS))
    put(store, *paths)
    assert without_cost(solve(store)) == first


def test_of_two_dumps_of_one_rank_the_later_one_is_used(tmp_path: Path) -> None:
    # Rank 3 has called in its later dump, in whatever order the two are imported.
    job = FlightJob(4, {"0": range(4)})
    job.call_all((0, 1, 2), "0")
    early, late = tmp_path / "early", tmp_path / "late"
    early.mkdir()
    late.mkdir()
    job.write(early)
    job.call(3, "0")
    job.write(late)
    for folders in ((early, late), (late, early)):
        store = tmp_path / f"{folders[0].name}.duckdb"
        for folder in folders:
            put(store, *sorted(folder.iterdir()))
        verdict = solve(store)
        assert verdict.outcome == "insufficient_evidence"
        assert verdict.hang is not None
        assert verdict.hang.joined == (0, 1, 2, 3)
        (item,) = verdict.data_quality
        assert (item.code, item.count) == ("DUPLICATE_RANK", 1)
        assert "later" in item.text


def test_dumps_that_contradict_each_other_are_left_out(tmp_path: Path) -> None:
    # Rank 3 has a dump under two names with the same times and progress, but other stacks.
    job = FlightJob(4, {"0": range(4)})
    job.call_all((0, 1, 2), "0")
    job.call(3, "0", frame=("one", 1))
    paths = job.write(tmp_path)
    store = tmp_path / "store.duckdb"
    put(store, *paths)
    job.entries[3][-1]["frames"][0]["name"] = "two"
    os.utime(paths[3], ns=(START_NS, START_NS))
    put(store, *job.write(tmp_path))
    with duckdb.connect(str(store)) as connection:
        connection.execute("UPDATE log_records SET observed_unix_ns = 0")
    verdict = solve(store)
    assert verdict.outcome == "insufficient_evidence"
    (item,) = verdict.data_quality
    assert (item.code, item.count) == ("DUPLICATE_RANK", 1)
    assert "contradict" in item.text


def test_dumps_of_two_versions_and_with_odd_times_are_told(tmp_path: Path) -> None:
    job = FlightJob(3, {"0": range(3)})
    job.call_all(range(3), "0")
    job.call(1, "0")
    job.entries[1][-1]["time_created_ns"] -= 5_000_000_000
    paths = job.write(tmp_path, is_json=True)
    paths[2].write_text(paths[2].read_text().replace("2.27.3", "2.26.2"))
    store = tmp_path / "store.duckdb"
    put(store, *paths)
    quality = {item.code: item for item in solve(store).data_quality}
    assert set(quality) == {"MIXED_VERSIONS", "BAD_TIME"}
    assert "2.26.2, 2.27.3" in quality["MIXED_VERSIONS"].text
    assert quality["BAD_TIME"].count == 1


def test_the_odd_stack_is_shown_first(tmp_path: Path) -> None:
    job = FlightJob(3, {"0": range(3), "1": range(3)})
    job.call(2, "1", frame=("evaluate", 7))
    for rank in (0, 1):
        job.call(rank, "0", frame=("train", 3))
    store = tmp_path / "store.duckdb"
    put(store, *job.write(tmp_path))
    verdict = solve(store)
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.ranks) == ("COLLECTIVE_DEADLOCK", (2,))
    assert verdict.syndrome == "communication_hang"
    assert verdict.hang is not None
    assert verdict.hang.cycle == ("all_reduce #4 of GROUP_0", "all_reduce #4 of GROUP_1")
    assert [group.ranks for group in verdict.hang.stack_groups] == [(2,), (0, 1)]
    assert "rank 2: evaluate (train.py:7)" in render_text(verdict)


def test_one_store_with_two_jobs_asks_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store.duckdb"
    job = FlightJob(2, {"0": range(2)})
    paths = job.write(tmp_path)
    put(store, *paths, options=("--job", "a"))
    put(store, *paths, options=("--job", "b"))
    assert main(["diagnose", str(store)]) == 2
    assert '"a", "b"' in capsys.readouterr().err
    assert main(["diagnose", str(store), "--job", "b"]) == 0


def test_dumps_without_a_hang_do_not_answer_for_a_slow_job(tmp_path: Path) -> None:
    store = write_job(tmp_path / "store.duckdb", Job(faults=(Fault("contention", 1, 0.060, 40),)))
    job = FlightJob(2, {"0": range(2)})
    put(store, *job.write(tmp_path), options=("--job", "j1"))
    assert [finding.reason for finding in solve(store).findings] == ["CPU_CONTENTION"]


def test_a_job_that_was_slow_and_hangs_now_hangs(tmp_path: Path) -> None:
    store = write_job(tmp_path / "store.duckdb", Job(faults=(Fault("contention", 1, 0.060, 40),)))
    job = FlightJob(2, {"0": range(2)})
    job.call(0, "0")
    put(store, *job.write(tmp_path), options=("--job", "j1"))
    (finding,) = solve(store).findings
    assert (finding.reason, finding.subject.ranks) == ("NOT_JOINED", (1,))


def test_a_hang_of_an_attempt_that_has_ended_does_not_answer(tmp_path: Path) -> None:
    slow = Job(faults=(Fault("contention", 1, 0.060, 40),), attempt=1)
    store = write_job(tmp_path / "store.duckdb", slow)
    job = FlightJob(2, {"0": range(2)})
    job.call(0, "0")
    put(store, *job.write(tmp_path), options=("--job", "j1"))
    assert [finding.reason for finding in solve(store).findings] == ["CPU_CONTENTION"]


def test_records_that_others_wrote_under_this_name_are_left_out(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    job = FlightJob(3, {"0": range(3)})
    job.call_all((0, 1), "0")
    put(store, *job.write(tmp_path))
    with duckdb.connect(str(store)) as connection:
        connection.execute(
            "UPDATE log_records SET body = replace(body, 'frontiers', 'borders') WHERE rank = 0"
        )
    verdict = solve(store)
    assert verdict.outcome in {"finding", "insufficient_evidence"}
    assert [item.code for item in verdict.data_quality] == ["RANK_MISSING"]


@pytest.mark.parametrize("case", ["gpu_error_1st", "lock_gil_1st"])
def test_another_job_in_the_store_changes_nothing(tmp_path: Path, case: str) -> None:
    paths = sorted((CASES / case).glob("_dump_*"))
    put(tmp_path / "one.duckdb", *paths, options=("--job", "j"))
    alone = without_cost(diagnose(tmp_path / "one.duckdb", job="j"))
    other = FlightJob(20, {"0": range(20)})
    other.call_all(range(19), "0")
    store = write_job(tmp_path / "two.duckdb", Job(faults=(Fault("contention", 1, 0.060, 40),)))
    put(store, *other.write(tmp_path), options=("--job", "other"))
    put(store, *paths, options=("--job", "j"))
    assert without_cost(diagnose(store, job="j")) == alone


@pytest.mark.parametrize("shift", [1, 5])
def test_a_job_with_other_names_for_its_ranks_gives_the_same_verdict(
    tmp_path: Path, shift: int
) -> None:
    # Two orders: ranks 0, 1 and 3 reduce in group 0 before group 1, rank 2 the other way round; 6 is absent elsewhere.
    job = FlightJob(8, {"0": range(4), "1": range(4), "2": range(4, 8)})
    for rank in range(4):
        for group in ("1", "0") if rank == 2 else ("0", "1"):
            job.call(rank, group)
    job.call_all((4, 5, 7), "2")
    found = []
    for number, place in enumerate(
        ({rank: rank for rank in range(8)}, {rank: (rank + shift) % 8 for rank in range(8)})
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        put(folder / "s.duckdb", *job.permuted(place).write(folder))
        verdict = solve(folder / "s.duckdb")
        back = {new: old for old, new in place.items()}
        found.append(
            {
                f.reason: (sorted(back[r] for r in f.subject.ranks), f.confidence, f.victims)
                for f in verdict.findings
            }
        )
    assert found[0] == found[1]
    assert {reason: ranks for reason, (ranks, *_) in found[0].items()} == {
        "COLLECTIVE_DEADLOCK": [2],
        "NOT_JOINED": [6],
    }
