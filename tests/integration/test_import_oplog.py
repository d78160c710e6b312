"""Operation traces into a store, and the verdict that it gives: a public job, and made-up ones."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.job_choice import choose_job
from rootwalk.graph.model import Verdict
from rootwalk.graph.operations.arrays import align_operations
from rootwalk.graph.operations.graph import OperationGraph, build_operations
from rootwalk.graph.operations.store import read_operations
from rootwalk.graph.verdict import to_object
from rootwalk.otel_receiver.store import query_store, reading
from support.live_check import note_store
from support.pipelines import PipelineJob
from support.trace_injection import even_stages, step_seconds, write_slower
from support.verdicts import check_verdict

PUBLIC = Path(__file__).parents[1] / "data" / "straggleranalysis"


def put(store: Path, meta: Path, *traces: Path, options: tuple[str, ...] = ()) -> int:
    names = [str(trace) for trace in traces]
    arguments = [*names, "--meta", str(meta), "--store", str(store), "--quiet", *options]
    code = main(["import", "oplog", *arguments])
    if code == 0:
        note_store(store, "true")
    return code


def solve(folder: Path, job: PipelineJob, steps: tuple[int, int] | None = None) -> Verdict:
    trace, meta = job.write(folder)
    store = folder / "store.duckdb"
    assert put(store, meta, trace) == 0
    return check_verdict(diagnose(store, steps=steps))


def findings(verdict: Verdict) -> list[tuple[str, int | None, int | None]]:
    return [(f.reason, f.subject.rank, f.subject.stage) for f in verdict.findings]


def without_cost(verdict: Verdict) -> dict[str, Any]:
    return {key: value for key, value in to_object(verdict).items() if key != "cost"}


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the public job whose last stage has more work."""
    store = tmp_path_factory.mktemp("public") / "store.duckdb"
    assert put(store, PUBLIC / "meta-ST.yaml", PUBLIC / "trace-ST.parquet") == 0
    return store


def test_the_public_job_with_an_uneven_split(stages: Path) -> None:
    """Its authors: the last stage has more work, no worker is bad, slowdown 1.179."""
    verdict = check_verdict(diagnose(stages))
    (finding,) = verdict.findings
    assert (finding.reason, finding.method, finding.pattern) == (
        "STAGE_IMBALANCE",
        "walk",
        "stage",
    )
    assert (finding.subject.rank, finding.subject.ranks, finding.subject.stage) == (None, (), 3)
    assert finding.confidence.band == "high"
    assert verdict.what_if is not None
    assert verdict.what_if.slowdown == pytest.approx(1.179, rel=0.005)
    assert (verdict.job.id, verdict.job.world_size) == ("ST", 8)
    assert (verdict.syndrome, verdict.window.first_step) == ("non_communication_slow", 23)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "first", "slowdown"),
    [("AR", ("SLOW_COMPUTE", 0, 0), 1.973), ("SE", ("SEQ_IMBALANCE", None, None), 1.537)],
)
def test_the_larger_public_jobs_as_a_whole(
    tmp_path: Path, name: str, first: tuple[str, int | None, int | None], slowdown: float
) -> None:
    store = tmp_path / "store.duckdb"
    traces = sorted(PUBLIC.glob(f"trace-{name}*.parquet"))
    assert put(store, PUBLIC / f"meta-{name}.yaml", *traces) == 0
    verdict = check_verdict(diagnose(store))
    assert findings(verdict)[0] == first
    assert {rank for _, rank, _ in findings(verdict)} <= {first[1], None}
    assert verdict.what_if is not None
    assert verdict.what_if.slowdown == pytest.approx(slowdown, rel=0.005)


def cut(name: str, folder: Path, steps: set[int], skew_s: dict[int, float] | None = None) -> Path:
    """Some steps of a public trace, with the ranks' clocks moved."""
    table = parquet.read_table(PUBLIC / name)
    rows = [row for row in table.to_pylist() if row["step"] in steps]
    for row in rows:
        row["start_ts"] = float(row["start_ts"]) + 1.0 + (skew_s or {}).get(row["rank"], 0.0)
    trace = folder / "cut.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), trace)
    return trace


@pytest.mark.parametrize("skewed_s", [0.0, 0.05])
def test_the_public_job_with_a_slow_worker(tmp_path: Path, skewed_s: float) -> None:
    """Its authors: dp 0, stage 0, which is rank 0. The longest operations are the victims' communications."""
    noise = random.Random(3)  # noqa: S311  (nothing is secret here)
    skew = {rank: noise.gauss(0.0, skewed_s) for rank in range(64)}
    trace = cut("trace-AR.parquet", tmp_path, {16, 813}, skew)
    store = tmp_path / "store.duckdb"
    assert put(store, PUBLIC / "meta-AR.yaml", trace) == 0
    for steps in (None, (16, 16), (813, 813)):
        verdict = check_verdict(diagnose(store, steps=steps))
        assert findings(verdict) == [("SLOW_COMPUTE", 0, 0)]
        assert verdict.findings[0].confidence.band == "high"
        assert verdict.what_if is not None
        # Two steps have other means and medians than all 44.
        assert verdict.what_if.slowdown == pytest.approx(1.973, rel=0.1)
        assert verdict.victims.count == 15
        assert verdict.window.first_step == (steps or (16,))[0]


def read_graph(store: Path) -> OperationGraph:
    with reading(store) as connection:
        key = choose_job(connection, None)
        assert key is not None
        operations, _ = read_operations(connection, key, (0, 400))
    return build_operations(align_operations(operations)[0])


@pytest.mark.parametrize(
    ("dose", "is_named"), [(0.0, False), (0.02, False), (0.2, True)], ids=["no", "small", "large"]
)
def test_a_worker_of_the_public_job_made_slower(
    stages: Path, tmp_path: Path, dose: float, is_named: bool
) -> None:
    """Rank 6 has the last stage, which all wait for; what costs less than the noise floor accuses nobody."""
    graph = read_graph(stages)
    trace = tmp_path / "slower.parquet"
    write_slower(graph, {6: 1.0 + dose}, trace)
    assert put(tmp_path / "store.duckdb", PUBLIC / "meta-ST.yaml", trace) == 0
    verdict = check_verdict(diagnose(tmp_path / "store.duckdb"))
    named = [rank for _, rank, _ in findings(verdict) if rank is not None]
    assert named == ([6] if is_named else [])


@pytest.mark.long
@pytest.mark.parametrize("pair", [(0, 2), (3, 5), (4, 7)], ids=str)
def test_two_workers_of_the_public_job_made_slower_are_both_named_with_their_seconds(
    stages: Path, tmp_path: Path, pair: tuple[int, int]
) -> None:
    """Its uneven split is taken out; each worker's seconds are its fair share in replays with none, one and both."""
    graph = even_stages(read_graph(stages))
    both = dict.fromkeys(pair, 1.4)
    trace = tmp_path / "slower.parquet"
    write_slower(graph, both, trace)
    assert put(tmp_path / "store.duckdb", PUBLIC / "meta-ST.yaml", trace) == 0
    verdict = check_verdict(diagnose(tmp_path / "store.duckdb"))
    share_s = {f.subject.rank: f.seconds.share for f in verdict.findings}
    assert set(share_s) == set(pair)
    plain_s, both_s = (float(step_seconds(graph, ranks).mean()) for ranks in ({}, both))
    alone_s = {rank: float(step_seconds(graph, {rank: 1.4}).mean()) for rank in pair}
    for rank, other in (pair, pair[::-1]):
        true_s = (alone_s[rank] - plain_s + both_s - alone_s[other]) / 2.0
        assert share_s[rank] == pytest.approx(true_s, rel=0.1)


def test_every_fourth_step_of_it_alone_says_the_same(stages: Path) -> None:
    numbers = [
        row[0] for row in query_store(stages, "SELECT DISTINCT step FROM steps ORDER BY 1")[2]
    ]
    assert len(numbers) == 32
    for number in numbers[::4]:
        verdict = diagnose(stages, steps=(number, number))
        assert findings(verdict) == [("STAGE_IMBALANCE", None, 3)]


def test_the_same_store_gives_the_same_verdict(stages: Path) -> None:
    first, second = without_cost(diagnose(stages)), without_cost(diagnose(stages))
    assert json.dumps(first) == json.dumps(second)


def test_the_same_file_twice_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store.duckdb"
    arguments = (store, PUBLIC / "meta-ST.yaml", PUBLIC / "trace-ST.parquet")
    assert put(*arguments) == 0
    before = query_store(store, "SELECT * FROM spans ORDER BY ALL")
    capsys.readouterr()
    assert put(*arguments) == 0
    assert "nothing new; 7040 records were there already" in capsys.readouterr().out
    assert query_store(store, "SELECT * FROM spans ORDER BY ALL") == before
    # 6,784 operations, and 32 steps of 8 ranks.
    assert len(before[2]) == 6784 + 32 * 8


def test_a_slow_worker_is_named_with_its_seconds_and_its_victims(tmp_path: Path) -> None:
    job = PipelineJob(slow={(2, 0): 1.5})
    verdict = solve(tmp_path, job)
    rank = job.rank(2, 0)
    assert findings(verdict) == [("SLOW_COMPUTE", rank, 0)]
    (finding,) = verdict.findings
    # All its forward passes, a hop and a pass on the last stage and one back, then four hops with its backward passes.
    slow_s = 4 * 0.15 + (0.001 + 0.1) + 0.2 + 4 * (0.001 + 0.3) + 0.05 + 0.01 + 0.02
    assert verdict.step_s == pytest.approx(slow_s)
    assert finding.seconds.share == pytest.approx(slow_s - 1.588, rel=0.01)
    assert verdict.healthy_step_s == pytest.approx(1.588, rel=0.01)
    assert finding.predicted_step_s == pytest.approx(1.588, rel=0.01)
    assert verdict.victims.count == 7
    assert rank not in verdict.victims.ranks
    assert [link.edge for link in finding.chain] == ["slowed_by", "waits_for", "running"]
    assert (finding.pattern, finding.layer, finding.owner) == ("fixed", "device", "unknown")


def test_two_slow_workers_are_both_named_though_each_hides_the_other(tmp_path: Path) -> None:
    job = PipelineJob(slow={(0, 0): 1.5, (3, 1): 1.5})
    verdict = solve(tmp_path, job)
    assert {rank for _, rank, _ in findings(verdict)} == {job.rank(0, 0), job.rank(3, 1)}
    shares = [f.seconds.share or 0.0 for f in verdict.findings]
    assert sum(shares) == pytest.approx((verdict.step_s or 0.0) - 1.588, rel=0.05)
    assert all(abs(f.seconds.remove or 0.0) < 0.05 for f in verdict.findings)
    assert all((f.seconds.add or 0.0) > 0.5 for f in verdict.findings)


def test_all_equal_ranks_accuse_nobody(tmp_path: Path) -> None:
    verdict = solve(tmp_path, PipelineJob())
    assert (verdict.outcome, verdict.kind, verdict.findings) == ("insufficient_evidence", None, ())
    assert verdict.what_if is not None
    assert verdict.what_if.slowdown == pytest.approx(1.0, abs=0.001)


def test_long_sequences_accuse_the_data(tmp_path: Path) -> None:
    def factor(step: int, replica: int, micro_batch: int) -> float:
        return 3.0 if (replica == step % 4 and micro_batch == 1) else 1.0

    verdict = solve(tmp_path, PipelineJob(steps=8, data_factor=factor))
    assert findings(verdict) == [("SEQ_IMBALANCE", None, None)]
    assert verdict.findings[0].pattern == "rotating"


def test_a_single_replica_cannot_tell_a_stage_from_its_worker(tmp_path: Path) -> None:
    verdict = solve(tmp_path, PipelineJob(replicas=1, stages=4, slow={(0, 2): 2.0}))
    assert findings(verdict) == [("STAGE_IMBALANCE", None, 2)]
    assert verdict.findings[0].confidence.band == "low"


def test_late_starts_accuse_the_host_at_low_confidence(tmp_path: Path) -> None:
    job = PipelineJob(late_s={(1, 1): 0.5})
    verdict = solve(tmp_path, job)
    assert findings(verdict) == [("UNKNOWN_HOST", job.rank(1, 1), 1)]
    assert verdict.findings[0].confidence.band == "low"


def test_50_ms_of_skew_a_host_changes_no_verdict(tmp_path: Path) -> None:
    noise = random.Random(11)  # noqa: S311  (nothing is secret here)
    skew = {rank: noise.gauss(0.0, 0.05) for rank in range(8)}
    plain = solve(tmp_path / "plain", PipelineJob(slow={(2, 0): 1.3}))
    skewed = solve(tmp_path / "skewed", PipelineJob(slow={(2, 0): 1.3}, skew_s=skew))
    assert findings(skewed) == findings(plain) == [("SLOW_COMPUTE", 2, 0)]
    assert skewed.findings[0].seconds.share == pytest.approx(
        plain.findings[0].seconds.share, rel=0.01
    )


def test_permuted_ranks_permute_the_verdict(tmp_path: Path) -> None:
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    slow = {(2, 0): 1.3}
    plain = solve(tmp_path / "plain", PipelineJob(slow=slow))
    moved = solve(
        tmp_path / "moved",
        PipelineJob(slow=slow, rank_of=lambda replica, stage: order[stage * 4 + replica]),
    )
    assert moved.findings[0].subject.rank == order[2]
    assert moved.findings[0].seconds == plain.findings[0].seconds
    assert sorted(moved.victims.ranks) == sorted(order[rank] for rank in plain.victims.ranks)


def test_steps_that_are_not_there_and_a_job_of_one_rank(tmp_path: Path) -> None:
    verdict = solve(tmp_path / "none", PipelineJob(), steps=(70, 80))
    assert (verdict.outcome, verdict.step_s) == ("insufficient_evidence", None)
    verdict = solve(tmp_path / "one", PipelineJob(replicas=1, stages=1))
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())


def test_broken_rows_are_named_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = PipelineJob().rows()
    total = len(rows)
    rows[3]["duration"] = -1.0
    rows[5]["stage"] = 9
    rows[7]["rank"] = 6  # which is at another place
    rows[9]["start_ts"] = float("nan")
    rows[11]["rank"] = 99
    trace, meta = PipelineJob().write(tmp_path, rows)
    assert put(tmp_path / "store.duckdb", meta, trace) == 1
    told = capsys.readouterr().err
    for text in ("row 3: cannot read the operation", "row 5: ", "row 7: ", "row 9: ", "row 11: "):
        assert text in told
    found = query_store(tmp_path / "store.duckdb", "SELECT count(*) FROM operations")[2]
    assert found == [(total - 5,)]


def test_a_job_that_lacks_messages_says_so_and_accuses_nobody(tmp_path: Path) -> None:
    job = PipelineJob(slow={(2, 0): 2.0})
    rows = [row for row in job.rows() if row["optype"] != "forward-send"]
    trace, meta = job.write(tmp_path, rows)
    assert put(tmp_path / "store.duckdb", meta, trace) == 0
    verdict = check_verdict(diagnose(tmp_path / "store.duckdb"))
    assert verdict.outcome == "insufficient_evidence"
    assert "UNEQUAL_MEMBERS" in [item.code for item in verdict.data_quality]


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"PAR1 and no more", "needs a whole Parquet file"), (b"", "with nothing in them")],
)
def test_a_file_of_another_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, text: str
) -> None:
    trace = tmp_path / "trace.parquet"
    trace.write_bytes(content)
    assert put(tmp_path / "store.duckdb", PUBLIC / "meta-ST.yaml", trace) == 1
    assert text in capsys.readouterr().err


def test_a_file_without_the_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.parquet"
    parquet.write_table(pa.table({"rank": [1], "step": [1]}), trace)
    assert put(tmp_path / "store.duckdb", PUBLIC / "meta-ST.yaml", trace) == 1
    assert "saw no column dp_rank" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("dp_size: 2\npp_size: 4\n", "saw none for world_size"),
        ("dp_size: two\npp_size: 4\nworld_size: 8\n", 'saw "two" for dp_size'),
    ],
)
def test_a_meta_file_without_degrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, text: str
) -> None:
    meta = tmp_path / "meta.yaml"
    meta.write_text(lines)
    assert put(tmp_path / "store.duckdb", meta, PUBLIC / "trace-ST.parquet") != 0
    assert text in capsys.readouterr().err


def test_the_format_needs_its_meta_file_and_others_take_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, store = str(PUBLIC / "trace-ST.parquet"), str(tmp_path / "store.duckdb")
    assert main(["import", "oplog", trace, "--store", store]) != 0
    assert "needs --meta" in capsys.readouterr().err
    meta = str(PUBLIC / "meta-ST.yaml")
    assert main(["import", "otlp", trace, "--meta", meta, "--store", store]) != 0
    assert "needs oplog" in capsys.readouterr().err
