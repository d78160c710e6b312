"""What `diagnose --watch` says of a store that grows, on a terminal and off one."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.serve.reading import Pulse
from rootwalk.graph.serve.watching import CLEAR_LINE, SignOfLife, Watch, status_line
from rootwalk.otel_receiver import store
from support.growing_store import GrowingStore
from support.jobs import NS, Fault, Job

EVIL = "evil\x1b[31m"


def test_lines_say_what_opens_and_a_minute_is_not_filled(tmp_path: Path) -> None:
    fault = Fault("contention", 1, 0.06, 60, name=EVIL)
    job = GrowingStore(tmp_path / "s.duckdb", Job(steps=90, faults=(fault,)))
    out = io.StringIO()
    now = [100.0]
    watch = Watch(job.path, None, out, None, now_s=lambda: now[0])
    job.grow(50)
    for steps in (0, 5, 30):
        job.grow(steps) if steps else None
        now[0] += 10.0
        watch.look(job.now_unix_ns)
    first, second = out.getvalue().splitlines()
    assert first == "step 49, 8.3 steps/s, 0.120 s a step; nothing found"
    assert second.startswith(
        "open: rank 1 (host-0, CPU 1): CPU contention by 'evil⟨U+001B⟩[31m' pid"
    )
    now[0] += 60.0
    watch.look(job.now_unix_ns)
    status = out.getvalue().splitlines()[-1]
    assert status.startswith("step 84, 5.6 steps/s, 0.180 s a step; rank 1 ")
    # from the onset at step 60 to the end of step 84: 25 slow steps of 0.18 s
    assert status.endswith(", for 4 s")


def test_a_terminal_has_one_line_that_fits(tmp_path: Path) -> None:
    job = GrowingStore(tmp_path / "s.duckdb", Job(steps=30))
    job.grow(30)
    out = io.StringIO()
    Watch(job.path, None, out, 20, now_s=lambda: 0.0).look(job.now_unix_ns)
    assert out.getvalue() == f"{CLEAR_LINE}step 29, 8.3 steps/"


def test_a_job_without_a_step_is_said_to_have_none() -> None:
    assert status_line(Pulse((), None, None, 2, ()), [], NS) == "no complete step yet"


def test_a_job_that_stands_still_is_said_to() -> None:
    pulse = Pulse(((41, 0.5), (42, 0.5)), 42, 1_000 * NS, 2, ())
    assert status_line(pulse, [], 1_059 * NS).startswith("step 42, 2 steps/s")
    assert status_line(pulse, [], 1_090 * NS) == "step 42, no new one for 90 s; nothing found"
    slow = Pulse(((41, 30.0), (42, 30.0)), 42, 1_000 * NS, 2, ())
    assert status_line(slow, [], 1_090 * NS).startswith("step 42, 0.033 steps/s")


def test_a_run_shows_once_a_minute_how_it_does(tmp_path: Path) -> None:
    job = GrowingStore(tmp_path / "s.duckdb", Job(steps=30))
    job.grow(30)
    now = [100.0]
    life = SignOfLife(job.path, now_s=lambda: now[0])
    said = []
    for _ in range(7):
        now[0] += 20.0
        said.append(life.take(job.now_unix_ns))
    line = "j1: step 29, 8.3 steps/s, 0.120 s a step; nothing found"
    assert said == [None, None, line, None, None, line, None]


def test_a_run_without_a_job_yet_is_silent(tmp_path: Path) -> None:
    now = [0.0]
    life = SignOfLife(tmp_path / "s.duckdb", now_s=lambda: now[0])
    now[0] = 100.0
    assert life.take(NS) is None
    store.create_store(tmp_path / "s.duckdb")
    assert life.take(NS) is None


def test_an_empty_store_is_watched_in_silence(tmp_path: Path) -> None:
    store.create_store(tmp_path / "s.duckdb")
    out = io.StringIO()
    Watch(tmp_path / "s.duckdb", None, out, None).look(NS)
    assert out.getvalue() == ""


def test_watching_gives_no_single_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "none.duckdb", "--watch", "--json"]) == 2
    assert "cannot watch" in capsys.readouterr().err
