"""What files are, by their content alone."""

from __future__ import annotations

import contextlib
import gzip
import json
import pickle
import sqlite3
from pathlib import Path

import pytest

from rootwalk.graph.importers.recognition import recognise
from support.flight_dumps import FlightJob
from support.profiles import MadeProfile, write_profile

DATA = Path(__file__).parents[2] / "data"


def format_of(path: Path) -> str | None:
    found = recognise(path)
    return None if found is None else found.format


@pytest.mark.parametrize("is_packed", [False, True])
def test_every_format_is_found_by_content_under_any_name(
    tmp_path: Path, *, is_packed: bool
) -> None:
    dump = FlightJob(2, {"0": range(2)}).dump(0)
    profile = write_profile(tmp_path / "p", MadeProfile()).read_bytes()
    log = (
        b"step 1\n" * 200_000
        + b"[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(\n"
    )
    contents = {
        "flight-recorder": [pickle.dumps(dump, 2), json.dumps(dump).encode()],
        "kineto": [profile, json.dumps(json.loads(profile)["traceEvents"]).encode()],
        "nccl-inspector": [
            path.read_bytes() for path in (DATA / "nccl_inspector_made").glob("*.log")
        ],
        "otlp": [b'{"resourceSpans": []}\n{"resourceMetrics": []}\n'],
        "watchdog-log": [log],
        "oplog": [b"PAR1\x15\x04"],
    }
    for name, texts in contents.items():
        assert texts
        for text in texts:
            path = tmp_path / "any.bin"
            path.write_bytes(gzip.compress(text) if is_packed else text)
            assert format_of(path) == name


def test_dumps_and_profiles_of_the_repository_are_found() -> None:
    kinds = {
        "flight-recorder": [*(DATA / "nvrx_flight_recorder").rglob("_dump_*")],
        "kineto": [*(DATA / "kineto").glob("*.json*")],
        "oplog": [*(DATA / "straggleranalysis").rglob("*.parquet")],
    }
    for name, paths in kinds.items():
        assert paths
        assert {format_of(path) for path in paths} == {name}


def test_files_of_other_tools_are_named_with_what_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)")
    found = recognise(path)
    assert found is not None
    assert found.format is None
    assert "Nsight" in found.what
    trace = tmp_path / "et.json"
    trace.write_text('{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}')
    found = recognise(trace)
    assert found is not None
    assert "execution trace" in found.what
    log = tmp_path / "nccl.log"
    log.write_text("node1:1:9 [0] NCCL INFO Bootstrap : Using eth0\n")
    found = recognise(log)
    assert found is not None
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" in found.advice


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", b"{", b"\x1f\x8b\x08", b"\x80\x02}.", b"\x00" * 99]
)
def test_of_what_is_nothing_known_nothing_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(content)
    assert recognise(path) is None
