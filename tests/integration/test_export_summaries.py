"""Summaries of workers out of a store: the slow one has the largest distance, and healthy ones have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rootwalk.graph.cli import main
from rootwalk.graph.summaries.reading import MAX_FUNCTIONS
from rootwalk.otel_receiver.store import create_store, writing
from support.jobs import Job, write_job
from support.pipelines import PipelineJob
from support.sampled_jobs import Spent, write_sampled_job
from support.stores import query_rows

PUBLIC = Path(__file__).parents[1] / "data" / "straggleranalysis"
Rows = list[dict[str, Any]]


def put(folder: Path, trace: Path, meta: Path) -> Path:
    store = folder / "store.duckdb"
    arguments = ["import", "oplog", str(trace), "--meta", str(meta), "--store", str(store)]
    assert main([*arguments, "--quiet"]) == 0
    return store


def export(store: Path, *options: str) -> Rows:
    output = store.with_name("summaries.parquet")
    arguments = ["export", str(store), "--format", "summaries", "--output", str(output)]
    assert main([*arguments, "--force", "--quiet", *options]) == 0
    rows: Rows = parquet.read_table(output).to_pylist()
    return rows


def standing_out(rows: Rows) -> set[tuple[int, str]]:
    return {(row["rank"], row["function"]) for row in rows if row["stands_out"]}


def cut(folder: Path, name: str, steps: set[int]) -> Path:
    rows = [r for r in parquet.read_table(PUBLIC / name).to_pylist() if r["step"] in steps]
    trace = folder / "cut.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), trace)
    return trace


def test_the_public_job_with_a_slow_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its authors: dp 0, stage 0, which is rank 0. In communication its victims are as far from their peers."""
    trace = cut(tmp_path, "trace-AR.parquet", {16, 17, 18, 813})
    rows = export(put(tmp_path, trace, PUBLIC / "meta-AR.yaml"))
    assert standing_out(rows) == {(0, "forward-compute"), (0, "backward-compute")}
    own = [row for row in rows if row["kind"] == "operation" and row["share"] >= 0.01]
    far = max(own, key=lambda row: row["peer_distance"])
    assert far["rank"] == 0
    assert far["peer_distance"] > 10 * max(r["peer_distance"] for r in own if r["rank"] != 0)
    told = capsys.readouterr().out
    assert "rank 0 stands out: forward-compute" in told
    assert "of records (" in told


def test_the_public_job_with_no_bad_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its authors: the last stage has more work; its workers are like their peers."""
    store = put(tmp_path, PUBLIC / "trace-ST.parquet", PUBLIC / "meta-ST.yaml")
    rows = export(store)
    assert standing_out(rows) == set()
    assert "stands out" not in capsys.readouterr().out
    assert (
        max(r["peer_distance"] for r in rows if r["kind"] == "operation" and r["share"] > 0.01)
        < 0.1
    )
    found = {(row["rank"], row["function"]): row for row in rows}
    expected = query_rows(
        store,
        "SELECT o.rank, operation_type, count(*), avg(duration_ns) / 1e9, stddev_pop(duration_ns) / 1e9,"
        " sum(duration_ns) / any_value(whole_ns) FROM operations o JOIN (SELECT rank, sum(duration_ns) AS whole_ns"
        " FROM steps GROUP BY rank) s USING (rank) GROUP BY ALL",
    )
    assert len(expected) == len(rows)
    for rank, function, calls, mean, deviation, share in expected:
        row = found[rank, function]
        assert (row["calls"], row["job"], row["stage"]) == (calls, "ST", rank // 2)
        numbers = [row["mean"], row["deviation"], row["share"]]
        assert numbers == pytest.approx([mean, deviation, share], rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("slow", [{}, {(2, 1): 1.3}])
def test_made_up_pipeline(tmp_path: Path, slow: dict[tuple[int, int], float]) -> None:
    job = PipelineJob(replicas=5, slow=slow)
    rows = export(put(tmp_path, *job.write(tmp_path)))
    bad = {job.rank(*place) for place in slow}
    assert {rank for rank, _ in standing_out(rows)} == bad
    # Steps beyond the last are none; who is whose peer is told by the last there is.
    assert standing_out(export(tmp_path / "store.duckdb", "--steps", "0:99")) == standing_out(rows)
    some = export(tmp_path / "store.duckdb", "--ranks", "3", "--steps", "1:1")
    assert {row["rank"] for row in some} == {3}
    assert {row["calls"] for row in some if row["function"] == "forward-compute"} == {4}


def test_more_steps_are_no_more_bytes(tmp_path: Path) -> None:
    weights = []
    for steps in (20, 80):
        store = write_job(
            tmp_path / f"{steps}.duckdb", Job(ranks=4, steps=steps, jitter_ratio=0.02)
        )
        assert standing_out(export(store)) == set()
        weights.append((tmp_path / "summaries.parquet").stat().st_size)
    assert weights[1] <= 1.1 * weights[0]


def test_what_all_ranks_have_alike_shows_beside_their_past(tmp_path: Path) -> None:
    """All forward passes take three times as long from step 40 on."""
    job = Job(
        ranks=4,
        steps=60,
        factor=lambda step, rank, phase: 3.0 if step >= 40 and phase == "forward" else 1.0,
    )
    store = write_job(tmp_path / "job.duckdb", job)
    rows = [row for row in export(store, "--steps", "40:59") if row["function"] == "forward"]
    assert len(rows) == 4
    for row in rows:
        assert row["peer_distance"] == pytest.approx(0.0, abs=0.01)
        # two thirds of the mean, and a part of the share that is more than half
        assert 1.1 < row["history_distance"] < 4 / 3
    assert {row["history_distance"] for row in export(store)} == {None}


def test_function_of_a_profile_that_one_rank_is_in(tmp_path: Path) -> None:
    spent = (
        Spent("main;train_step;forward", on_s=0.05),
        Spent("main;train_step;rebuild_mask", on_s=0.02),
        Spent("main;train_step;rebuild_mask", on_s=0.06, ranks=(2,)),
        Spent("main;wait@libc", off_s=0.05),
    )
    store = write_sampled_job(tmp_path / "job.duckdb", Job(ranks=4, steps=40), spent)
    rows = [row for row in export(store) if row["kind"] in ("on_cpu", "off_cpu")]
    assert {(row["kind"], row["function"]) for row in rows} == {
        ("on_cpu", "forward"),
        ("on_cpu", "rebuild_mask"),
        ("off_cpu", "wait"),
    }
    assert standing_out(rows) == {(2, "rebuild_mask")}
    mine = {r["rank"]: r for r in rows if r["function"] == "rebuild_mask"}
    # 0.02 s and 0.06 s more, each a part of the same step, and as much of each second of its profiles
    assert mine[2]["share"] == pytest.approx(4 * mine[0]["share"], rel=0.05)
    assert mine[2]["mean"] == pytest.approx(mine[2]["share"], rel=0.05)


def test_the_same_store_gives_the_same_bytes(tmp_path: Path) -> None:
    store = write_job(tmp_path / "job.duckdb", Job(ranks=8, steps=60, jitter_ratio=0.05))
    found = []
    for _ in range(3):
        export(store)
        found.append((tmp_path / "summaries.parquet").read_bytes())
    assert found[0] == found[1] == found[2]


def test_names_without_end_are_cut_to_those_with_most_time(tmp_path: Path) -> None:
    store = write_job(tmp_path / "job.duckdb", Job(ranks=2, steps=5))
    with writing(store) as connection:
        connection.execute(
            "INSERT INTO span_records SELECT s.* REPLACE ('job ' || i.range AS name, s.start_unix_ns + i.range AS"
            " end_unix_ns) FROM (FROM span_records WHERE name = 'training.rank_step' AND rank = 1 LIMIT 1) s,"
            " range(1, 701) i"
        )
    mine = [row for row in export(store) if row["rank"] == 1]
    assert len(mine) == MAX_FUNCTIONS
    made_up = {row["function"] for row in mine if row["function"].startswith("job ")}
    assert "job 700" in made_up
    assert "job 100" not in made_up


def test_store_without_a_job_and_ranks_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, job = tmp_path / "empty.duckdb", tmp_path / "job.duckdb"
    create_store(empty)
    write_job(job, Job(ranks=2, steps=5))
    for store, options in ((empty, ()), (job, ("--ranks", "7")), (job, ("--steps", "90:99"))):
        output = str(tmp_path / "none.parquet")
        arguments = ["export", str(store), "--format", "summaries", "--output", output, *options]
        assert main(arguments) == 1
        assert "cannot export: saw no span of a step" in capsys.readouterr().err
        assert not Path(output).exists()
