"""`rootwalk run` in a real terminal: the job's lines above, how it does below, and all rows free at each end."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from rootwalk.graph.commands import watcher
from rootwalk.graph.serve.watching import SignOfLife
from support.growing_store import GrowingStore
from support.jobs import Fault, Job
from support.screen import ROWS, open_screen
from support.terminal import CTRL_C

pytestmark = pytest.mark.slow

JOB = """
import time
for i in range(60):
    print(f"line {i} ", end="", flush=True)
    time.sleep(0.04)
    print(f"ends {i}", flush=True)
"""
LINES = [f"line {i} ends {i}" for i in range(60)]
NAP = "import time; print('job begins', flush=True); time.sleep(100)"


def run(code: str, *options: str) -> list[str]:
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--store", "s.duckdb"]
    return [*command, *options, "--", sys.executable, "-c", code]


def is_row(text: str) -> bool:
    return text.startswith(" rootwalk 0:")


def test_the_jobs_lines_are_whole_and_the_terminal_is_as_it_was(tmp_path: Path) -> None:
    with open_screen(run(JOB), tmp_path) as screen:
        screen.look(lambda: LINES[30] in screen.lines)
        assert screen.rows[-1].endswith("| no complete step yet")
        assert is_row(screen.rows[-1])
        assert screen.region() == (0, ROWS - 2)
        assert screen.look_to_the_end() == 0
        assert screen.region() is None
        assert [line for line in screen.lines if line.startswith("line ")] == LINES
        assert not any(map(is_row, screen.lines))
        assert screen.cursor[1] == 0


@pytest.mark.parametrize("way", ["key", "SIGTERM", "SIGINT"])
def test_every_end_gives_the_terminal_back(tmp_path: Path, way: str) -> None:
    with open_screen(run(NAP), tmp_path) as screen:
        screen.look(lambda: "job begins" in screen.lines and is_row(screen.rows[-1]))
        if way == "key":
            screen.press(CTRL_C)
        else:
            screen.process.send_signal(signal.Signals[way])
        assert screen.look_to_the_end() in (1, 128 + signal.SIGINT, 128 + signal.SIGTERM)
        assert screen.region() is None
        assert not any(map(is_row, screen.lines))


@pytest.mark.parametrize(
    ("options", "environment"), [(["--no-status-row"], {}), ([], {"TERM": "dumb"})]
)
def test_nothing_moves_where_it_is_not_wanted(
    tmp_path: Path, options: list[str], environment: dict[str, str]
) -> None:
    with open_screen(run(JOB, *options), tmp_path, environment=environment) as screen:
        screen.look(lambda: LINES[30] in screen.lines)
        assert screen.region() is None
        assert not is_row(screen.rows[-1])
        assert screen.look_to_the_end() == 0
        assert b"\x1b" not in screen.written


def test_the_watcher_says_how_a_job_does_and_reads_only_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = GrowingStore(
        tmp_path / "s.duckdb", Job(steps=60, faults=(Fault("contention", 1, 0.06, 40),))
    )
    life, path = SignOfLife(job.path), tmp_path / "status"
    watcher.keep_status(path, "j1", life)
    assert not path.exists(), "the job has told nothing"
    job.grow(60)
    monkeypatch.setattr(time, "time_ns", lambda: job.now_unix_ns)
    watcher.keep_status(path, "j1", life)
    text = path.read_text()
    assert text == '["step 59, 5.6 steps/s", ", 0.180 s a step", "; nothing found", ""]'
    path.unlink()
    monkeypatch.setattr(SignOfLife, "_read", lambda *_: pytest.fail("nothing is new"))
    watcher.keep_status(path, "j1", life)
    assert path.read_text() == text
    watcher.keep_status(tmp_path / "no folder" / "status", "j1", life)
