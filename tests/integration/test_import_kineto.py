"""PyTorch profiles into a store, and the verdicts that they give: public ones, and made ones with known causes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Finding, Verdict
from rootwalk.graph.render.text import render_text
from rootwalk.graph.verdict import to_object
from rootwalk.otel_receiver.store import reading
from support.live_check import check_store, note_store
from support.profiles import BASE_NS, MadeProfile, document, without_steps, write_profile
from support.verdicts import check_schema

PUBLIC = Path(__file__).parents[1] / "data" / "kineto"
SLOW = PUBLIC / "num_workers_0-worker0.pt.trace.json.gz"
HEALTHY = PUBLIC / "num_workers_4-worker0.pt.trace.json.gz"
MANY_WORKERS = "_MultiProcessingDataLoaderIter"
DEVICE_LAYERS = {"device", "network", "collective"}


def put(store: Path, *paths: Path, options: tuple[str, ...] = ()) -> int:
    names = [str(path) for path in paths]
    return main(["import", "kineto", *names, "--store", str(store), "--quiet", *options])


def solve(store: Path) -> Verdict:
    verdict = diagnose(store)
    check_schema(to_object(verdict))
    assert all(len(line) <= 80 for line in render_text(verdict).splitlines())
    return verdict


def put_made(directory: Path, *made: MadeProfile, skew_ns: int = 0) -> Path:
    """Import profiles of one job, the clock of each skewed by so much more than that of the one before."""
    paths = []
    for one in made:
        text = document(one) | {"baseTimeNanoseconds": BASE_NS + one.rank * skew_ns}
        paths.append(directory / f"rank{one.rank}.json")
        paths[-1].write_text(json.dumps(text))
    store = directory / "store.duckdb"
    assert put(store, *paths) == 0
    return store


def ask(store: Path, query: str) -> list[tuple[Any, ...]]:
    with reading(store) as connection:
        rows: list[tuple[Any, ...]] = connection.execute(query).fetchall()
    return rows


def without_cost(verdict: Verdict) -> dict[str, Any]:
    return {key: value for key, value in to_object(verdict).items() if key != "cost"}


def only_finding(verdict: Verdict) -> Finding:
    assert verdict.outcome == "finding"
    (finding,) = verdict.findings
    return finding


def test_the_public_slow_loader_is_host_input_and_not_the_device(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    assert put(store, SLOW) == 0
    assert check_store(store) == []
    note_store(store, "true")
    verdict = solve(store)
    finding = only_finding(verdict)
    assert (finding.reason, finding.layer) == ("DATALOADER_CPU", "application")
    assert (finding.subject.rank, verdict.healthy_from) == (0, "ideal")
    # 415.8 ms of loading in six steps, 62.1 of them while the device had work.
    assert finding.seconds.share == pytest.approx((0.4158 - 0.0621) / 6, abs=0.002)
    # A third of it was seen to be CPU work: no more is claimed.
    assert finding.confidence.band == "low"
    assert "sched" in {missing.sensor for missing in verdict.missing_sensors}
    text = render_text(verdict)
    assert text.startswith("rank 0 (unknown host 0): input decoding in the main process, +0.059")
    # All 415.8 ms of loading are on the path.
    assert "device    loading data 0.069 s/step on the critical path" in text


def test_the_public_healthy_loader_is_not_accused(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    assert put(store, HEALTHY) == 0
    verdict = solve(store)
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())


@pytest.mark.parametrize("path", [SLOW, HEALTHY])
def test_public_kernel_seconds_are_those_that_are_known(tmp_path: Path, path: Path) -> None:
    store = tmp_path / "store.duckdb"
    assert put(store, path) == 0
    # The table of the samples: sum of steps, of loading and of kernels, ms.
    steps_ms, load_ms, kernel_ms = {SLOW: (1049.0, 415.8, 591.5), HEALTHY: (838.2, 8.5, 594.9)}[
        path
    ]
    (row,) = ask(
        store,
        """SELECT sum(end_unix_ns - start_unix_ns) FILTER (name = 'training.rank_step') / 1e6,
        sum(end_unix_ns - start_unix_ns) FILTER (name = 'data_load') / 1e6,
        sum((attributes ->> '$."training.device.kernel_time"')::DOUBLE) FILTER (name = 'training.rank_step') * 1e3
        FROM spans""",
    )
    assert row[:2] == pytest.approx((steps_ms, load_ms), abs=0.06)
    # Kernels that began after the last step are no step's.
    assert 0.97 * kernel_ms < row[2] <= kernel_ms + 0.05


WITHOUT_PATHS = "SELECT count(*) FROM spans WHERE NOT starts_with(name, 'training.device.')"
# Public profiles by what they give, beside the paths of their steps: spans, or what is said of them.
IMPORTED = {
    "nccl_data.json.gz": 37,
    "sampled_rank-0.json.gz": 21,
    "sampled_rank-1.json.gz": 19,
    "event_sync_trace.json.gz": 3,
    "backward_thread.json": 4,
    "rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz": 2,
}
REFUSED = {
    "simple_add.json.gz": "cannot find the steps",
    "cupti_profiler.json.gz": "cannot find the steps",
}


@pytest.mark.parametrize("name", IMPORTED)
def test_public_profiles_are_imported_without_an_invented_verdict(
    tmp_path: Path, name: str
) -> None:
    store = tmp_path / "store.duckdb"
    assert put(store, PUBLIC / name) == 0
    assert ask(store, WITHOUT_PATHS) == [(IMPORTED[name],)]
    assert solve(store).outcome == "insufficient_evidence"


@pytest.mark.parametrize("name", REFUSED)
def test_public_profiles_without_rank_or_steps_are_refused_in_words(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert put(tmp_path / "store.duckdb", PUBLIC / name) == 1
    error = capsys.readouterr().err
    assert f'"{PUBLIC / name}", the whole file: {REFUSED[name]}' in error
    assert "hint: " in error


@pytest.mark.parametrize("name", ["amd_trace.json.gz", "no_number.json.gz"])
def test_a_public_profile_without_rank_is_rank_0_if_it_is_alone(tmp_path: Path, name: str) -> None:
    store = tmp_path / "store.duckdb"
    assert put(store, PUBLIC / name) == 0
    assert ask(store, WITHOUT_PATHS) == [(7,)]
    assert "RANKS_ASSUMED" in {item.code for item in solve(store).data_quality}
    note_store(store, "true")


@pytest.mark.parametrize(("name", "spans"), [("amd_trace.json.gz", 7), ("no_number.json.gz", 7)])
def test_a_rank_that_nobody_tells_can_be_named(tmp_path: Path, name: str, spans: int) -> None:
    store = tmp_path / "store.duckdb"
    assert put(store, PUBLIC / name, options=("--rank", "0")) == 0
    assert ask(store, WITHOUT_PATHS) == [(spans,)]
    assert solve(store).outcome == "insufficient_evidence"


@pytest.mark.parametrize("files", [(SLOW, HEALTHY), (SLOW,)])
def test_a_rank_is_named_for_one_profile_alone(
    tmp_path: Path, files: tuple[Path, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    format_name = "kineto" if len(files) > 1 else "otlp"
    names = [str(path) for path in files]
    store = str(tmp_path / "store.duckdb")
    assert main(["import", format_name, *names, "--store", store, "--rank", "1"]) == 2
    assert "cannot use --rank 1" in capsys.readouterr().err


def test_public_collectives_have_bytes_group_and_type(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    assert put(store, PUBLIC / "nccl_data.json.gz") == 0
    rows = ask(
        store,
        """SELECT operation, communicator_name, communicator_size, count(*), sum(bytes), bool_and(is_end_known)
        FROM collectives GROUP BY ALL ORDER BY ALL""",
    )
    # Three steps: ResNet-50's 25,557,032 gradients in Float, its 53 normalisations' statistics and counts in Long.
    assert rows == [
        ("all_reduce", "default_pg", 2, 15, 3 * 25_557_032 * 4, True),
        ("broadcast", "default_pg", 2, 6, 3 * (53_120 * 4 + 53 * 8), True),
    ]


def test_the_same_file_twice_changes_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    assert put(store, SLOW) == 0
    before = ask(store, "SELECT * FROM spans ORDER BY span_id"), without_cost(solve(store))
    assert put(store, SLOW) == 0
    assert (
        ask(store, "SELECT * FROM spans ORDER BY span_id"),
        without_cost(solve(store)),
    ) == before


def test_two_profiles_of_one_rank_are_told(tmp_path: Path) -> None:
    made = document(MadeProfile(loads_ms=(40.0,)))
    first, second = tmp_path / "rank0-a.json", tmp_path / "rank0-b.json"
    first.write_text(json.dumps(made))
    # Another process, at the same time.
    second.write_text(json.dumps(made).replace('"pid": 100', '"pid": 200'))
    store = tmp_path / "store.duckdb"
    assert put(store, first, second) == 0
    verdict = solve(store)
    assert "DUPLICATE_RANK" in {item.code for item in verdict.data_quality}
    assert all(finding.confidence.band == "low" for finding in verdict.findings)


def test_a_broken_file_is_named_and_the_others_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [write_profile(tmp_path / f"rank{r}.json", MadeProfile(r, (5.0,) * 3)) for r in (0, 2)]
    text = whole[0].read_bytes().replace(b'"rank": 0', b'"rank": 1')
    place = text.index(b"ProfilerStep#12")
    cut = tmp_path / "rank1.json"
    cut.write_bytes(text[:place])
    store = tmp_path / "store.duckdb"
    assert put(store, whole[0], cut, whole[1]) == 1
    assert f'"{cut}", byte {place}: cannot read the profile' in capsys.readouterr().err
    assert ask(store, "SELECT rank, count(*) FROM steps GROUP BY 1 ORDER BY 1") == [
        (0, 6),
        (1, 2),
        (2, 6),
    ]
    assert solve(store).outcome == "insufficient_evidence"


def test_strict_stops_at_the_first_broken_part(tmp_path: Path) -> None:
    cut = tmp_path / "rank0.json"
    cut.write_text("[")
    store = tmp_path / "store.duckdb"
    assert put(store, cut, SLOW, options=("--strict",)) == 1
    assert not store.exists() or ask(store, "SELECT count(*) FROM spans") == [(0,)]


@pytest.mark.parametrize(
    ("made", "reason", "share_s"),
    [
        # The device has work for the first 10 of 40 ms from the second step on.
        (MadeProfile(loads_ms=(40.0,), busy_ms=10.0), "DATALOADER_CPU", 0.030 + 0.010 / 6),
        (MadeProfile(loads_ms=(40.0,), loader=MANY_WORKERS), "UNKNOWN_HOST", 0.040),
        # Its own loader, but nothing says what it does.
        (MadeProfile(loads_ms=(40.0,), operators_ratio=0.1), "UNKNOWN_HOST", 0.040),
        # As many steps as a history takes: each is judged by itself all the same.
        (MadeProfile(loads_ms=(40.0,), steps=40), "DATALOADER_CPU", 0.040),
        (MadeProfile(loads_ms=(40.0,), steps=3), "DATALOADER_CPU", 0.040),
    ],
)
def test_one_profile_is_judged_against_itself_without_input_waits(
    tmp_path: Path, made: MadeProfile, reason: str, share_s: float
) -> None:
    verdict = solve(put_made(tmp_path, made))
    finding = only_finding(verdict)
    assert (finding.reason, finding.subject.rank) == (reason, 0)
    assert finding.layer not in DEVICE_LAYERS
    assert finding.seconds.share == pytest.approx(share_s, abs=1e-6)
    assert verdict.step_s is not None
    assert verdict.healthy_step_s == pytest.approx(verdict.step_s - share_s, abs=1e-6)
    assert finding.confidence.band == "low"
    assert finding.chain[0].edge == "slowed_by"
    assert finding.chain[-1].text.endswith(" data_load")


@pytest.mark.parametrize(
    "made",
    [
        # A tenth of what the rest takes, 75 ms, is not claimed.
        MadeProfile(loads_ms=(7.0,)),
        # The device has work all the time: nothing is lost.
        MadeProfile(loads_ms=(40.0,), busy_ms=40.0),
        # Nobody knows whether it has.
        MadeProfile(loads_ms=(40.0,), has_device=False),
        MadeProfile(loads_ms=(40.0,), steps=2),
    ],
)
def test_what_costs_nothing_or_is_not_known_is_not_accused(
    tmp_path: Path, made: MadeProfile
) -> None:
    verdict = solve(put_made(tmp_path, made))
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())


@pytest.mark.parametrize("skew_ms", [0, 50])
@pytest.mark.parametrize("steps", [3, 6])
def test_the_rank_that_loads_longest_is_named_and_the_others_are_its_victims(
    tmp_path: Path, skew_ms: int, steps: int
) -> None:
    loads = (5.0, 5.0, 60.0, 5.0)
    made = [MadeProfile(rank, loads, loader=MANY_WORKERS, steps=steps) for rank in range(4)]
    verdict = solve(put_made(tmp_path, *made, skew_ns=skew_ms * 1_000_000))
    finding = only_finding(verdict)
    assert (finding.reason, finding.subject.rank) == ("UNKNOWN_HOST", 2)
    assert verdict.victims.ranks == (0, 1, 3)
    assert finding.seconds.remove == pytest.approx(0.055, rel=0.02)
    assert verdict.step_s == pytest.approx(0.135, rel=0.02)


def test_what_all_ranks_wait_for_is_no_single_ranks(tmp_path: Path) -> None:
    made = [MadeProfile(rank, (60.0,) * 4) for rank in range(4)]
    finding = only_finding(solve(put_made(tmp_path, *made)))
    assert (finding.reason, finding.subject.rank) == ("DATALOADER_CPU", None)
    assert finding.seconds.share == pytest.approx(0.060, abs=1e-6)


def test_ranks_that_load_alike_and_little_are_not_accused(tmp_path: Path) -> None:
    made = [MadeProfile(rank, (5.0,) * 4) for rank in range(4)]
    assert solve(put_made(tmp_path, *made)).findings == ()


def put_without_steps(directory: Path, loads_ms: tuple[float, ...], steps: int = 40) -> Path:
    """Import profiles of loops that do not call `prof.step()`."""
    paths = []
    for rank in range(len(loads_ms)):
        made = MadeProfile(rank=rank, loads_ms=loads_ms, steps=steps)
        paths.append(write_profile(directory / f"rank{rank}.json", made, without_steps(made)))
    store = directory / "store.duckdb"
    assert put(store, *paths) == 0
    return store


def test_profiles_without_steps_tell_by_their_collectives_whom_all_wait_for(tmp_path: Path) -> None:
    store = put_without_steps(tmp_path, (5.0, 5.0, 45.0, 5.0))
    verdict = solve(store)
    finding = only_finding(verdict)
    assert (finding.method, finding.subject.rank) == ("flow_only", 2)
    # The others wait 40 ms for it in every iteration.
    assert finding.seconds.share == pytest.approx(0.040, abs=0.004)
    assert finding.confidence.band != "high"
    # The same files again change nothing.
    assert put(store, *sorted(tmp_path.glob("rank*.json"))) == 0
    assert without_cost(solve(store)) == without_cost(verdict)


def test_profiles_without_steps_and_without_a_late_rank_accuse_nobody(tmp_path: Path) -> None:
    verdict = solve(put_without_steps(tmp_path, (5.0, 5.2, 4.9, 5.1)))
    assert (verdict.outcome == "finding", verdict.findings) == (False, ())


def test_two_profiles_of_one_rank_without_steps_are_not_taken_for_one(tmp_path: Path) -> None:
    store = put_without_steps(tmp_path, (5.0, 5.0, 45.0, 5.0))
    made = MadeProfile(rank=2, loads_ms=(5.0, 5.0, 45.0, 5.0), steps=40)
    later = document(made, without_steps(made)) | {"baseTimeNanoseconds": BASE_NS + 60 * 10**9}
    path = tmp_path / "later-rank2.json"
    path.write_text(json.dumps(later))
    assert put(store, path) == 0
    verdict = solve(store)
    assert verdict.outcome == "insufficient_evidence"
    assert "DUPLICATE_RANK" in {item.code for item in verdict.data_quality}


@pytest.mark.parametrize(
    ("event", "saw"),
    [
        ('{"ph":"X","ts":' + "9" * 5000 + "}", "a number of more than 400 characters"),
        ('{"ph":"X","ts":1e99999999999999999999}', "beyond all measure"),
        ('{"a":' * 20_000 + "1" + "}" * 20_000, "more than 64 levels"),
    ],
    ids=["integer", "exponent", "nesting"],
)
def test_hostile_json_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], event: str, saw: str
) -> None:
    path = tmp_path / "rank0.json"
    path.write_text('{"traceEvents":[' + event + "]}", encoding="utf-8")
    assert put(tmp_path / "s.duckdb", path) == 1
    assert saw in capsys.readouterr().err
