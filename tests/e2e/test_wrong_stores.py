"""Stores that a command must not touch, and jobs that must not be mixed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from rootwalk.otel_receiver.store import SCHEMA_VERSION, create_store
from support.command import query, run_rootwalk
from support.launchers import SCRIPT
from support.receiver_process import running_receiver

NEWER = SCHEMA_VERSION + 1


@pytest.fixture
def newer_store(tmp_path: Path) -> Path:
    path = tmp_path / "s.duckdb"
    create_store(path)
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "UPDATE schema_versions SET version = ?, product = 'rootwalk 9.0'", [NEWER]
        )
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--store", "s.duckdb", "--", "touch", "started"),
        ("receive", "--store", "s.duckdb", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        ("diagnose", "s.duckdb"),
        ("sql", "s.duckdb", "SELECT 1"),
    ],
    ids=lambda words: words[0],
)
def test_store_of_a_newer_version_is_refused(
    newer_store: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    before = hashlib.sha256(newer_store.read_bytes()).hexdigest()
    done = run_rootwalk(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert f"saw schema version {NEWER} by rootwalk 9.0" in done.stderr
    assert f"needs schema version {SCHEMA_VERSION}" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert hashlib.sha256(newer_store.read_bytes()).hexdigest() == before
    assert not (tmp_path / "started").exists()


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.slow
def test_two_jobs_with_one_id_in_one_receiver_are_told(tmp_path: Path) -> None:
    """Both claim rank 0: their steps mix, and the verdict must say so and blame nobody for it with confidence."""
    pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
    store = tmp_path / "s.duckdb"
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(running_receiver(store))
        jobs = []
        for name in ("a", "b"):
            folder = tmp_path / name
            folder.mkdir()
            command = [sys.executable, "-m", "rootwalk.graph", "run", "--job", "same"]
            command += ["--endpoint", f"http://{receiver.http}", "--"]
            jobs.append(
                subprocess.Popen(
                    [*command, sys.executable, SCRIPT, str(folder), "--steps", "80"],
                    cwd=folder,
                    env=os.environ | alone,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        assert [job.wait(120) for job in jobs] == [0, 0]
        receiver.stop()
    pids = {
        json.loads((tmp_path / name / "rank0.0.jsonl").read_text().splitlines()[0])["pid"]
        for name in ("a", "b")
    }
    assert len(pids) == 2
    stored = query(store, "SELECT count(DISTINCT step) AS n FROM steps", cwd=tmp_path)
    assert stored == [{"n": 80}]
    done = run_rootwalk("diagnose", "s.duckdb", "--json", cwd=tmp_path)
    verdict = json.loads(done.stdout)
    assert "DUPLICATE_RANK" in {item["code"] for item in verdict["data_quality"]}
    assert "high" not in {finding["confidence"]["band"] for finding in verdict["findings"]}
