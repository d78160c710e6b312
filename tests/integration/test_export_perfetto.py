"""The walked path as a Perfetto trace: read by Perfetto's own protobuf classes, equal to what the store has."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.exporters import perfetto
from rootwalk.otel_receiver.store import create_store
from support.jobs import Fault, Job, write_job
from support.perfetto_files import Drawn, Trace, arrows_of, read_perfetto
from support.stores import query_rows

DATA = Path(__file__).parents[1] / "data"
DUMPS = DATA / "nvrx_flight_recorder" / "fr_traces" / "lock_gil_1st"
FAULT_S = 0.060
# Rank 2 is on the second host, whose clock is 0.7 s ahead.
JOB = Job(
    ranks=4,
    hosts=2,
    skew_s=(0.0, 0.7),
    jitter_ratio=0.05,
    faults=(Fault("contention", 2, FAULT_S, 40),),
)
ALIGNED_NS = 1_000_000
STEPS = range(40, 80)


def export(store: Path, *options: str, code: int = 0) -> Trace:
    path = store.with_name("out.pftrace")
    arguments = ["export", str(store), "--format", "perfetto", "--output", str(path), "--force"]
    assert main([*arguments, *options, "--quiet"]) == code
    return read_perfetto(path) if code == 0 else Trace()


def offsets(store: Path) -> dict[str, int]:
    return dict(query_rows(store, "SELECT host_id, offset_ns FROM clock_offsets")) | {None: 0}


def rows_of(store: Path, view: str, where: str = "step >= 40") -> set[tuple[int, int, int]]:
    """Return rank, start and end of rows, on the clock on which they are drawn."""
    by_host = {} if view == "collectives" else offsets(store)
    columns = "rank, host_id, start_unix_ns, end_unix_ns"
    rows = query_rows(store, f"SELECT {columns} FROM {view} WHERE {where}")  # noqa: S608
    return {
        (rank, start - by_host.get(host, 0), end - by_host.get(host, 0))
        for rank, host, start, end in rows
    }


def drawn(slices: list[Drawn]) -> set[tuple[int, int, int]]:
    return {(int(s.process.split()[1]), s.start_ns, s.end_ns) for s in slices}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("store") / "job.duckdb", JOB)


@pytest.fixture(scope="module")
def trace(store: Path) -> Trace:
    return export(store)


def test_the_culprits_spans_are_those_of_the_store(store: Path, trace: Trace) -> None:
    rank = "rank 2 (host-1, pid 1002)"
    for category, view in [
        ("step", "steps"),
        ("phase", "phases"),
        ("collective", "collectives"),
        ("stall", "stalls"),
    ]:
        found = trace.of(rank, category=category)
        wanted = rows_of(store, view, "step >= 40 AND rank = 2")
        assert len(found) == len(wanted) > 0
        assert drawn(found) == wanted
    assert {s.process for s in trace.slices if s.category == "phase"} == {rank}
    assert trace.tracks[rank] == [
        "operations",
        "collectives default_pg",
        "thread main 1002 off CPU",
    ]
    step = trace.of(rank, "operations", "step")[0]
    assert (step.name, step.depth, step.arguments["step"]) == ("step 40", 0, 40)
    assert [s.name for s in trace.of(rank, "operations", "phase")[:4]] == [
        *("data_load", "forward", "backward", "optimizer"),
    ]
    assert {s.depth for s in trace.of(rank, "operations", "phase")} == {1}


def test_states_of_the_operating_system_say_who_ran_instead(trace: Trace) -> None:
    stalls = trace.of("rank 2", "thread main 1002 off CPU")
    (stall, *others) = [s for s in stalls if s.name == "runnable: node_exporter"]
    assert len(others) == len(STEPS) - 1
    assert stall.arguments["aggressor_pid"] == 4411
    assert stall.arguments["aggressor_ns"] == pytest.approx(FAULT_S * 1e9, rel=0.01)
    assert stall.end_ns - stall.start_ns == pytest.approx(FAULT_S * 1e9, rel=0.01)


def test_victims_wait_and_arrows_come_from_the_culprit(store: Path, trace: Trace) -> None:
    arrows = arrows_of(trace)
    waits = [s for s in trace.slices if s.category == "wait"]
    # In each step the last all-reduce keeps the three other ranks.
    assert len(arrows) == len(waits) == 3 * len(STEPS)
    ends = dict(query_rows(store, "SELECT sequence, min(end_unix_ns) FROM collectives GROUP BY 1"))
    starts = query_rows(store, "SELECT sequence, start_unix_ns FROM collectives WHERE rank = 2")
    issued = dict(starts)
    for start, end in arrows:
        assert start.process == "rank 2 (host-1, pid 1002)"
        assert (start.track, end.track) == ("operations", "waits for other ranks")
        assert not end.process.startswith("rank 2")
        assert start.start_ns == end.start_ns
        sequence = int(start.arguments["met_in"].partition("/")[2])
        assert start.start_ns == pytest.approx(issued[sequence], abs=ALIGNED_NS)
    for wait in waits:
        assert wait.arguments["culprit_rank"] == 2
        assert wait.name == f"waits for rank 2: {wait.arguments['met_in']}"
        assert wait.arguments["wait_s"] == pytest.approx((wait.end_ns - wait.start_ns) / 1e9)
        sequence = int(wait.arguments["met_in"].partition("/")[2])
        assert wait.end_ns == pytest.approx(ends[sequence], abs=ALIGNED_NS)
        (inside,) = [
            s
            for s in trace.of(wait.process, wait.track, "jump")
            if wait.start_ns <= s.start_ns <= wait.end_ns
        ]
        assert inside.depth == 1


def test_the_path_covers_the_window_once(trace: Trace) -> None:
    path = trace.of("job j1", "walked path")
    for before, after in itertools.pairwise(path):
        assert before.end_ns == after.start_ns
    total_s = (path[-1].end_ns - path[0].start_ns) / 1e9
    assert sum(s.arguments["path_s"] for s in path) == pytest.approx(total_s, abs=1e-6)
    assert {s.depth for s in path} == {0}
    # The culprit's own work, and the transfers that wait for it.
    own_s = sum(s.arguments["path_s"] for s in path if s.name.startswith("rank 2: "))
    moved_s = sum(s.arguments["path_s"] for s in path if s.name.endswith(" moves"))
    assert own_s + moved_s > 0.97 * total_s
    assert {s.arguments["step"] for s in path} == set(STEPS)


def test_the_clock_is_one_and_unix(store: Path, trace: Trace) -> None:
    every = export(store, "--ranks", "all")
    ends: dict[int, list[int]] = {}
    for item in every.of("rank", "collectives"):
        ends.setdefault(item.arguments["sequence"], []).append(item.end_ns)
    assert len(ends) == 2 * len(STEPS)
    for members in ends.values():
        assert len(members) == 4
        assert max(members) - min(members) < ALIGNED_NS
    assert trace.clocks.keys() == {1, 6}
    assert set(trace.clocks.values()) == {min(s.start_ns for s in trace.slices)}


def test_ranks_and_steps_are_chosen(store: Path) -> None:
    every = export(store, "--ranks", "all")
    for category, view in [("step", "steps"), ("phase", "phases"), ("collective", "collectives")]:
        assert drawn(every.of("rank", category=category)) == rows_of(store, view)
    # The accused first, whatever its number.
    assert list(every.tracks)[:2] == ["job j1", "rank 2 (host-1, pid 1002)"]
    some = export(store, "--ranks", "0,3", "--steps", "50:54")
    assert {s.process.partition(" (")[0] for s in some.slices if s.category == "phase"} == {
        *("rank 0", "rank 3"),
    }
    numbers = {s.arguments["step"] for s in some.slices if "step" in s.arguments}
    assert numbers == set(range(50, 55))


def test_the_verdict_is_an_instant_on_the_culprits_track(
    store: Path, trace: Trace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(store), "--quiet"]) == 0
    first = " ".join(capsys.readouterr().out.partition("\ncode ")[0].split())
    (said,) = [s for s in trace.slices if s.category == "verdict"]
    assert said.name == first
    assert (said.process, said.track) == ("rank 2 (host-1, pid 1002)", "operations")
    assert said.is_instant
    onset_ns = trace.of("job j1", "walked path")[0].start_ns
    assert said.start_ns == pytest.approx(onset_ns, abs=ALIGNED_NS)


@pytest.mark.long
def test_every_operation_of_a_trace_with_operations(tmp_path: Path) -> None:
    """A public job whose last stage has more work: no rank is to blame, and the path is drawn."""
    store, folder = tmp_path / "store.duckdb", DATA / "straggleranalysis"
    meta, traces = str(folder / "meta-ST.yaml"), str(folder / "trace-ST.parquet")
    arguments = ["import", "oplog", traces, "--meta", meta, "--store", str(store), "--quiet"]
    assert main(arguments) == 0
    steps = query_rows(store, "SELECT DISTINCT step FROM steps ORDER BY step")
    last = steps[-1][0]
    of_last = f"FROM operations WHERE step = {last}"
    trace = export(store, "--ranks", "all", "--steps", f"{last}:{last}")
    (count,) = query_rows(store, f"SELECT count(*) {of_last}")[0]
    found = [s for s in trace.slices if s.category in ("operation", "collective")]
    assert len(found) == count
    durations = query_rows(store, f"SELECT duration_ns {of_last}")
    # The clock of a rank moves as a whole; what is cut by another slice keeps its length on a lane of its own.
    assert sorted(s.end_ns - s.start_ns for s in found) == sorted(d for (d,) in durations)
    path = trace.of("job", "walked path")
    length = query_rows(store, f"SELECT max(end_unix_ns) - min(start_unix_ns) {of_last}")[0][0]
    total = sum(s.end_ns - s.start_ns for s in path)
    assert total == pytest.approx(length, rel=0.02)
    arrows = arrows_of(trace)
    assert arrows
    assert all(start.start_ns == end.start_ns for start, end in arrows)


def test_a_profile_of_one_rank(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    profile = DATA / "kineto" / "num_workers_0-worker0.pt.trace.json.gz"
    assert main(["import", "kineto", str(profile), "--store", str(store), "--quiet"]) == 0
    trace = export(store)
    steps = query_rows(store, "SELECT start_unix_ns, end_unix_ns FROM steps ORDER BY step")
    found = trace.of("rank 0", "operations", "step")
    assert [(s.start_ns, s.end_ns) for s in found] == steps
    assert len([s for s in trace.slices if s.category == "verdict"]) == 1
    assert not arrows_of(trace)


def test_a_healthy_job_is_drawn_as_it_is(tmp_path: Path) -> None:
    store = write_job(tmp_path / "job.duckdb", Job(ranks=2, jitter_ratio=0.02))
    trace = export(store)
    (said,) = [s for s in trace.slices if s.category == "verdict"]
    assert said.name.startswith("healthy")
    assert (said.process, said.track) == ("job j1", "verdict")
    assert {s.process.partition(" (")[0] for s in trace.slices if s.category == "phase"} == {
        *("rank 0", "rank 1"),
    }


def test_too_much_is_left_out_from_the_beginning_and_counted(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (of_step,) = query_rows(store, "SELECT count(*) FROM spans WHERE step = 79 AND rank >= 0")[0]
    (of_job,) = query_rows(store, "SELECT count(*) FROM spans WHERE step >= 40 AND rank >= 0")[0]
    assert of_step >= 4 * (1 + 4 + 2)
    monkeypatch.setattr(perfetto, "MAX_SPANS", 3 * of_step)
    trace = export(store, "--ranks", "all")
    (told, _) = capsys.readouterr()
    assert {s.arguments["step"] for s in trace.of("rank", "operations", "phase")} == {77, 78, 79}
    assert f"left out {of_job - 3 * of_step:,} more" in told
    assert "4 ranks in steps 77 to 79" in told
    # Of a step that is too much for itself, the ranks that matter.
    monkeypatch.setattr(perfetto, "MAX_SPANS", of_step // 2 + 1)
    trace = export(store, "--ranks", "all")
    assert {s.process[:6] for s in trace.slices if s.category == "phase"} == {"rank 2", "rank 0"}


def test_a_file_stays_below_its_size(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto, "MAX_BYTES", 20_000)
    trace = export(store, "--ranks", "all")
    assert 15_000 < store.with_name("out.pftrace").stat().st_size < 20_500
    (told, _) = capsys.readouterr()
    assert "left out" in told
    # The path and the accused come first.
    assert trace.of("job j1", "walked path")


@pytest.mark.parametrize("name", ["\x1b[31m", "</script>" * 400, "\udc80", "名前", ""])
def test_names_of_other_people_do_no_harm(tmp_path: Path, name: str) -> None:
    fault = Fault("contention", 0, FAULT_S, 40, name=name.encode(errors="replace").decode())
    store = write_job(tmp_path / "job.duckdb", Job(faults=(fault,)))
    trace = export(store)
    said = "".join(c for c in fault.name if c.isprintable())[:20]
    stalls = [s for s in trace.of("rank 0", "thread", "stall") if "runnable" in s.name]
    assert len(stalls) == len(STEPS)
    assert all(said in s.name for s in stalls)
    assert max(len(s.name) for s in trace.slices) <= 200


def test_nothing_to_draw_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.duckdb"
    create_store(empty)
    export(empty, code=1)
    assert "saw no step, operation or collective" in capsys.readouterr().err
    hang = tmp_path / "hang.duckdb"
    dumps = [str(p) for p in sorted(DUMPS.glob("_dump_*"))]
    assert main(["import", "flight-recorder", *dumps, "--store", str(hang), "--quiet"]) == 0
    capsys.readouterr()
    export(hang, code=1)
    err = capsys.readouterr().err
    assert "saw a hang that is told by dumps alone" in err
    assert "hint: " in err
    assert not list(tmp_path.glob("*.pftrace*"))


def test_a_file_is_not_overwritten(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = store.with_name("mine")
    path.write_text("mine")
    arguments = ["export", str(store), "--format", "perfetto", "--output", str(path)]
    assert main([*arguments, "--quiet"]) == 2
    assert "--force" in capsys.readouterr().err
    assert path.read_text() == "mine"


def test_the_trace_processor_agrees(store: Path, trace: Trace) -> None:
    binary = os.environ.get("TRACE_PROCESSOR")
    if not binary:
        pytest.skip("trace processor: needs its binary in TRACE_PROCESSOR")
    export(store)
    query = (
        "SELECT (SELECT count(*) FROM slice) AS slices, (SELECT count(*) FROM flow) AS flows,"
        " (SELECT coalesce(sum(value), 0) FROM stats WHERE severity IN ('error', 'data_loss')) AS errors"
    )
    script = store.with_name("query.sql")
    script.write_text(query)
    done = subprocess.run(
        [binary, "-q", str(script), str(store.with_name("out.pftrace"))],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    row: list[Any] = done.stdout.strip().splitlines()[-1].split(",")
    assert [int(value) for value in row] == [len(trace.slices), len(arrows_of(trace)), 0]
