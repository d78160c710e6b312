"""Folders, archives and files of mixed formats through `rootwalk import` and `rootwalk diagnose`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import diagnose
from support.flight_dumps import FlightJob
from support.profiles import MadeProfile, events_of, without_steps, write_profile

LOG = [
    "[rank{r}]:[E716 17:05:38.1 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=5, NumelOut=5, Timeout(ms)=600000) ran for 600010 milliseconds"
    " before timing out.",
    "[rank{r}]:[E716 17:05:38.2 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank {r}]  failure detected"
    " by watchdog at work sequence id: 8 PG status: last enqueued work: 8, last completed work: 7",
]


def write_hang(folder: Path, name: str = "nccl_trace_rank_{}") -> None:
    """Write the dumps of four ranks of which rank 2 has not called."""
    folder.mkdir()
    job = FlightJob(4, {"0": range(4)})
    job.call_all((0, 1, 3), "0")
    for rank, path in enumerate(job.write(folder)):
        path.rename(folder / name.format(rank))


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["diagnose", *words, "--json"]) == 0
    verdict: dict[str, Any] = json.loads(capsys.readouterr().out)
    return verdict


def culprits(verdict: dict[str, Any]) -> list[tuple[str, list[int]]]:
    return [(f["reason"], f["subject"]["ranks"]) for f in verdict["findings"]]


@pytest.mark.parametrize("kind", ["folder", "zip", "gztar", "xztar"])
def test_a_folder_and_archives_of_it_are_diagnosed(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "dumps"
    write_hang(folder)
    (folder / "README.md").write_text("notes of the job")
    path = folder
    if kind != "folder":
        path = Path(shutil.make_archive(str(tmp_path / "packed"), kind, folder))
    verdict = answer(capsys, str(path))
    assert culprits(verdict) == [("NOT_JOINED", [2])]
    assert verdict["hang"]["calls"][0]["operation"] == "all_reduce"


def test_the_store_of_a_diagnosis_is_kept_where_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_hang(tmp_path / "dumps")
    store = tmp_path / "kept.duckdb"
    first = answer(capsys, str(tmp_path / "dumps"), "--store", str(store))
    assert culprits(answer(capsys, str(store))) == culprits(first)
    assert main(["diagnose", str(store), "--store", str(store)]) == 2


def test_only_commands_that_work_are_named_as_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store that is not kept has no report, and a verdict without a finding has no code to explain."""
    write_hang(tmp_path / "stuck")
    (tmp_path / "open").mkdir()
    unknown = FlightJob(4, {"0": range(4)})
    unknown.call_all(range(4), "0")
    unknown.write(tmp_path / "open")

    def next_of(*words: str) -> list[str]:
        assert main(["diagnose", *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line.partition("rootwalk ")[2] for line in lines if "  rootwalk " in line]

    store = str(tmp_path / "kept.duckdb")
    assert next_of(str(tmp_path / "stuck")) == ["explain NOT_JOINED"]
    assert next_of(str(tmp_path / "open")) == []
    kept = next_of(str(tmp_path / "stuck"), "--store", store)
    assert kept == ["explain NOT_JOINED", f"report {store}", f"serve {store}"]


@pytest.mark.parametrize(
    "name", ["fr_rank_{}_node01.json", "{}_node01_2024-11-16", "n7-rank{}.20241116"]
)
def test_ranks_are_found_wherever_names_say_them(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_hang(tmp_path / "dumps", name)
    assert culprits(answer(capsys, str(tmp_path / "dumps"))) == [("NOT_JOINED", [2])]


def test_files_that_claim_one_rank_are_refused_and_nothing_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_hang(tmp_path / "dumps", "a_rank_{}")
    shutil.copy(tmp_path / "dumps" / "a_rank_3", tmp_path / "dumps" / "b_rank_3")
    store = tmp_path / "store.duckdb"
    words = ["import", "flight-recorder", str(tmp_path / "dumps"), "--store", str(store)]
    assert main(words) == 2
    assert 'saw rank 3 for "a_rank_3", "b_rank_3"' in capsys.readouterr().err
    assert not store.exists()
    assert main([*words, "--rank", "0,1,2,3,4"]) == 1  # rank 4 is in no communicator of its dump


def test_lines_of_a_log_stand_in_for_dumps_that_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line.format(r=rank) for rank in (0, 1, 3) for line in LOG]
    lines.append(LOG[1].format(r=2).replace("work: 8", "work: 7").replace("id: 8", "id: 7"))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "stderr.log").write_text("\n".join(lines))
    assert culprits(answer(capsys, str(tmp_path / "job"))) == [("NOT_JOINED", [2])]
    # Dumps beside them say more: here that rank 1 has not called.
    job = FlightJob(4, {"0": range(4)})
    job.call_all((0, 2, 3), "0")
    job.write(tmp_path / "job")
    assert culprits(answer(capsys, str(tmp_path / "job"))) == [("NOT_JOINED", [1])]


def test_a_file_of_another_format_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = write_profile(tmp_path / "rank0.json", MadeProfile())
    words = [str(profile), "--store", str(tmp_path / "s.duckdb")]
    assert main(["import", "flight-recorder", *words]) == 1
    error = capsys.readouterr().err
    assert "this is a PyTorch profile" in error
    assert "rootwalk import kineto" in error
    assert main(["import", "auto", *words]) == 0


def write_without_ranks(folder: Path, late: int, names: list[str]) -> None:
    """Write profiles of 4 ranks that do not say theirs; one prepares its input longer."""
    folder.mkdir()
    loads_ms = tuple(30.0 if rank == late else 5.0 for rank in range(4))
    for rank, name in enumerate(names):
        made = MadeProfile(rank=rank, loads_ms=loads_ms, steps=30)
        path = write_profile(folder / name, made, without_steps(made))
        document = json.loads(path.read_text())
        document.pop("distributedInfo", None)
        path.write_text(json.dumps(document))


def test_profiles_without_ranks_are_ranks_in_their_order(tmp_path: Path) -> None:
    names = [f"libkineto_activities_{pid}.json" for pid in (9998, 9999, 10000, 10001)]
    write_without_ranks(tmp_path / "p", 2, names)
    store = tmp_path / "store.duckdb"
    assert main(["import", "kineto", str(tmp_path / "p"), "--store", str(store)]) == 0
    verdict = diagnose(store)
    assert [finding.subject.ranks for finding in verdict.findings] == [(2,)]
    (item,) = [item for item in verdict.data_quality if item.code == "RANKS_ASSUMED"]
    assert item.count == 4
    asked = tmp_path / "asked.duckdb"
    options = ["--store", str(asked), "--rank", "3,2,1,0"]
    assert main(["import", "kineto", str(tmp_path / "p"), *options]) == 0
    verdict = diagnose(asked)
    assert [finding.subject.ranks for finding in verdict.findings] == [(1,)]
    assert "RANKS_ASSUMED" not in {item.code for item in verdict.data_quality}


def test_collectives_without_arguments_are_matched_by_order(tmp_path: Path) -> None:
    loads_ms = (5.0, 5.0, 30.0)
    paths = []
    for rank in range(3):
        made = MadeProfile(rank=rank, loads_ms=loads_ms, steps=30)
        events = [e for e in events_of(made) if e["name"] != "record_param_comms"]
        paths.append(str(write_profile(tmp_path / f"rank{rank}.json", made, events)))
    store = tmp_path / "store.duckdb"
    assert main(["import", "kineto", *paths, "--store", str(store)]) == 0
    with duckdb.connect(str(store), read_only=True) as connection:
        found = connection.execute(
            "SELECT count(DISTINCT (communicator_id, sequence)), count(*), min(communicator_size) FROM collectives"
        ).fetchall()
    assert found == [(30, 90, 3)]
    codes = {item.code: item.text for item in diagnose(store).data_quality}
    assert "matched in the order" in codes["MISSING_EDGE"]
    assert "CLOCK_UNALIGNED" not in codes


def test_collectives_that_do_not_end_together_are_not_matched(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        # The second rank's steps are longer: its calls are not those of the first.
        made = MadeProfile(rank=0, loads_ms=(5.0 + 40.0 * rank, 5.0), steps=30)
        events = [e for e in events_of(made) if e["name"] != "record_param_comms"]
        path = write_profile(tmp_path / f"rank{rank}.json", made, events)
        document = json.loads(path.read_text())
        document.pop("distributedInfo", None)
        path.write_text(json.dumps(document))
        paths.append(str(path))
    store = tmp_path / "store.duckdb"
    assert main(["import", "kineto", *paths, "--store", str(store)]) == 0
    with duckdb.connect(str(store), read_only=True) as connection:
        shared = "SELECT max(ranks) FROM (SELECT count(DISTINCT rank) ranks FROM collectives GROUP BY communicator_id)"
        assert connection.execute(shared).fetchall() == [(1,)]


def test_broken_numbers_and_control_characters_cost_their_event_alone(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "rank0.json", MadeProfile(steps=30))
    text = path.read_text()
    first = text.index('"aten::linear"')
    text = text[:first] + '"aten::\x1b[1mli\nnear"' + text[first + len('"aten::linear"') :]
    second = text.index('"dur":', text.index("ProfilerStep#20"))
    end = text.index(",", second)
    text = text[:second] + '"dur": Infinity' + text[end:]
    path.write_text(text)
    store = tmp_path / "store.duckdb"
    assert main(["import", "kineto", str(path), "--store", str(store)]) == 1
    texts = [item.text for item in diagnose(store).data_quality]
    assert any("1 events of 1 imported files could not be read" in text for text in texts)
    with duckdb.connect(str(store), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM steps").fetchall() == [(29,)]
