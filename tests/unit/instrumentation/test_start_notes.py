"""A process in which the instrumentation cannot start says so, and goes on."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rootwalk.graph.commands import check
from rootwalk.graph.commands.final_verdict import tell_verdict
from rootwalk.instrumentation.runtime import Runtime
from rootwalk.instrumentation.start_notes import describe_notes
from support.jobs import Job, add_cpu_limit, write_job, write_rows

BOOTSTRAP = Path(__file__).resolve().parents[3] / "instrumentation" / "bootstrap"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "rings" / "rootwalk-notes"
    monkeypatch.setenv("ROOTWALK_RING_DIRECTORY", str(made))
    monkeypatch.setenv("ROOTWALK_JOB", "j1")
    return made


def start_broken(tmp_path: Path, count: int) -> None:
    """Start processes under a bootstrap whose package cannot be imported."""
    package = tmp_path / "rootwalk" / "instrumentation"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('planted')\n")
    path = os.pathsep.join((str(BOOTSTRAP), str(tmp_path)))
    for _ in range(count):
        command = [sys.executable, "-c", "print('trained')"]
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("trained\n", "")


def test_processes_that_are_not_instrumented_are_counted_with_the_error(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start_broken(tmp_path, 3)
    version = ".".join(str(part) for part in sys.version_info[:3])
    wanted = f"not instrumented in 3 processes: ImportError: planted (Python {version})"
    assert describe_notes("j1") == (wanted, 3)
    assert describe_notes("j2") == ("", 0)
    store = write_job(tmp_path / "store.duckdb", Job(ranks=2, hosts=1, steps=60))
    tell_verdict(store, "j1", tmp_path / "verdict.json")
    assert wanted in (tmp_path / "verdict.json").read_text(encoding="utf-8")
    assert "not instrumented in 3 processes" in capsys.readouterr().out
    assert list(folder.iterdir()) == []  # the run is over


def test_check_repeats_them(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start_broken(tmp_path, 1)
    check.run(check_arguments(is_json=False))
    assert "not instrumented in 1 process: ImportError: planted" in capsys.readouterr().out
    check.run(check_arguments(is_json=True))
    assert '"not_instrumented": "not instrumented in 1 process' in capsys.readouterr().out
    assert len(list(folder.iterdir())) == 1


def check_arguments(*, is_json: bool) -> argparse.Namespace:
    return argparse.Namespace(json=is_json)


def test_hook_that_fails_leaves_a_note(folder: Path) -> None:
    runtime = Runtime()
    runtime.fail(ValueError("of a hook"))
    text, count = describe_notes("j1")
    assert (count, "ValueError: of a hook" in text) == (1, True)
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("has_steps", [True, False])
def test_run_says_where_ranks_have_no_step(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], has_steps: bool
) -> None:
    made = Job(ranks=2, hosts=1, steps=60)
    path = tmp_path / "store.duckdb"
    store = write_job(path, made) if has_steps else write_rows(path, [])
    for rank in (0, 1):
        add_cpu_limit(store, rank, 2.0)
    tell_verdict(store, "j1", None)
    said = capsys.readouterr().err
    assert ("no step was seen in 2 ranks" in said) is not has_steps
    assert ("rootwalk.step()" in said) is not has_steps
