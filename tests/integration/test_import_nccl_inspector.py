"""NCCL Inspector's logs into a store by the command, what the views show of them, and the verdict."""

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
from rootwalk.instrumentation.errors import ConfigError
from support.command import run_rootwalk
from support.inspector_logs import DDP, TENSOR_DATA, InspectorJob, Late, SlowGroup, line, to_bytes
from support.jobs import Fault, Job, write_job
from support.stores import query_rows
from support.verdicts import check_schema


def put(store: Path, *paths: Path, job: str | None = None) -> int:
    options = [] if job is None else ["--job", job]
    names = [str(path) for path in paths]
    return main(["import", "nccl-inspector", *names, "--store", str(store), "--quiet", *options])


def solve(store: Path, job: str | None = None) -> Verdict:
    verdict = diagnose(store, job=job)
    check_schema(to_object(verdict))
    assert all(len(line) <= 80 for line in render_text(verdict).splitlines())
    return verdict


def without_cost(verdict: Verdict) -> dict[str, Any]:
    return {key: value for key, value in to_object(verdict).items() if key != "cost"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.duckdb"


def test_the_late_rank_of_imported_logs_is_named(store: Path, tmp_path: Path) -> None:
    job = InspectorJob(iterations=60, late=(Late(5, 0.04, 30),)).run()
    assert put(store, *job.write(tmp_path / "logs"), job="o'brien") == 0
    verdict = solve(store)
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank, finding.method) == (
        "UNKNOWN_HOST",
        5,
        "flow_only",
    )
    assert finding.seconds.share == pytest.approx(0.04, rel=0.1)
    assert (verdict.job.id, verdict.job.world_size) == ("o'brien", 8)
    assert {item.sensor for item in verdict.missing_sensors} == {"nic_counters", "nvml", "sched"}
    # What it claims are rows of the store.
    with duckdb.connect(str(store)) as connection:
        edges = connection.execute("SELECT source_id, kind FROM edges").fetchall()
        nodes = [row[0] for row in connection.execute("SELECT id FROM nodes").fetchall()]
        assert connection.execute("SELECT id FROM findings").fetchall() == [(finding.id,)]
        for row in finding.evidence:
            assert len(connection.execute(str(row.query)).fetchall()) == 2 * 60
    assert finding.subject.node in nodes
    assert {(link.node, link.edge) for link in finding.chain} <= set(edges)
    text = render_text(verdict)
    assert text.startswith("rank 5 (node1): the others wait for it")
    assert "by communication records" in text


def test_slow_transfers_of_imported_logs_are_named(store: Path, tmp_path: Path) -> None:
    slow = (SlowGroup("data", 4, 1, 30),)
    job = InspectorJob(ranks=8, calls=TENSOR_DATA, slow=slow).run(is_verbose=False)
    put(store, *job.write(tmp_path / "logs"))
    (finding,) = solve(store).findings
    assert (finding.reason, finding.subject.communicator) == ("UNKNOWN_NET", "data")
    with duckdb.connect(str(store)) as connection:
        assert connection.execute(str(finding.evidence[0].query)).fetchall()


def test_views_show_the_collectives(store: Path, tmp_path: Path) -> None:
    job = InspectorJob(ranks=2, tensor=1, calls=DDP, iterations=3).run()
    put(store, *job.write(tmp_path / "logs"))
    rows = query_rows(
        store,
        "SELECT rank, operation, communicator_name, communicator_size, sequence, bytes, backend, is_end_known"
        " FROM collectives WHERE sequence <= 2 ORDER BY rank, sequence",
    )
    expected = [
        (rank, "all_reduce", "world", 2, sequence, size, "nccl", True)
        for rank in range(2)
        for sequence, size in ((1, 26_214_400), (2, 13_107_200))
    ]
    assert rows == expected
    assert query_rows(store, "SELECT world_size, ranks, steps FROM jobs") == [(2, 2, 0)]
    assert query_rows(store, "SELECT count(*) FROM collectives WHERE duration_ns <= 0") == [(0,)]


def test_the_same_logs_again_under_any_name_change_nothing(store: Path, tmp_path: Path) -> None:
    job = InspectorJob(late=(Late(5, 0.04, 30),)).run()
    paths = job.write(tmp_path / "logs")
    put(store, *paths)
    first = without_cost(solve(store))
    copy = tmp_path / "copy.log"
    copy.write_bytes(paths[3].read_bytes())
    put(store, *paths, copy)
    put(store, *reversed(paths))
    assert query_rows(store, "SELECT count(*) FROM collectives") == [(8 * 60 * 2,)]
    assert without_cost(solve(store)) == first


def test_a_log_that_has_grown_adds_what_is_new(store: Path, tmp_path: Path) -> None:
    job = InspectorJob(ranks=2, tensor=1, iterations=30).run()
    paths = job.write(tmp_path / "logs")
    whole = paths[0].read_bytes()
    paths[0].write_bytes(whole[: len(whole) // 2])
    assert put(store, *paths) == 1
    paths[0].write_bytes(whole)
    assert put(store, *paths) == 0
    assert query_rows(store, "SELECT rank, count(*) FROM collectives GROUP BY 1 ORDER BY 1") == [
        (0, 60),
        (1, 60),
    ]


def test_an_unrelated_job_changes_nothing(store: Path, tmp_path: Path) -> None:
    first = InspectorJob(late=(Late(5, 0.04, 30),)).run().write(tmp_path / "a")
    second = InspectorJob(ranks=4, calls=TENSOR_DATA, seed=9).run().write(tmp_path / "b")
    put(store, *first, job="a")
    alone = without_cost(solve(store))
    put(store, *second, job="b")
    assert without_cost(solve(store, "a")) == alone
    assert solve(store, "b").outcome == "healthy"
    with pytest.raises(ConfigError, match="saw 2 in the store"):
        diagnose(store)


def test_a_job_with_steps_is_judged_by_them(store: Path, tmp_path: Path) -> None:
    live = Job(ranks=4, faults=(Fault("contention", 2, 0.05, 40),))
    write_job(store, live)
    before = without_cost(diagnose(store))
    (name,) = query_rows(store, "SELECT job FROM jobs")[0]
    logs = InspectorJob(ranks=4, late=(Late(1, 0.1),)).run().write(tmp_path / "logs")
    put(store, *logs, job="other")
    assert without_cost(diagnose(store, job=name)) == before
    assert before["findings"][0]["method"] == "walk"


def test_two_hosts_that_claim_one_rank_are_told_and_nobody_is_accused(
    store: Path, tmp_path: Path
) -> None:
    job = InspectorJob(late=(Late(5, 0.04, 30),)).run()
    twin = [json.loads(json.dumps(item)) for item in job.lines[2]]
    for item in twin:
        item["metadata"]["hostname"] = "node9"
    job.lines[99] = twin
    put(store, *job.write(tmp_path / "logs"))
    verdict = solve(store)
    assert verdict.findings == ()
    assert verdict.outcome == "insufficient_evidence"
    assert "DUPLICATE_RANK" in {item.code for item in verdict.data_quality}


def test_broken_lines_are_told_by_the_command(tmp_path: Path) -> None:
    good = to_bytes([line(sequence=n) for n in range(3)])
    (tmp_path / "bad.log").write_bytes(good + b"{oops\n" + to_bytes([line(version="v9.9")]))
    (tmp_path / "good.log").write_bytes(to_bytes([line(rank=1, pid=101)]))
    options = ("--store", "new.duckdb")
    done = run_rootwalk("import", "nccl-inspector", "bad.log", "good.log", *options, cwd=tmp_path)
    assert done.returncode == 1
    assert '"bad.log", line 4: cannot read line: saw no JSON' in done.stderr
    assert '"bad.log", line 5: cannot read line: saw format "v9.9"; needs v4.x' in done.stderr
    assert "2 files into new.duckdb: 4 spans; 1 file broken" in done.stdout
    assert "Traceback" not in done.stderr
