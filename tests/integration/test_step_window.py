"""The steps to explain, chosen by time."""

from __future__ import annotations

import argparse
import datetime as dt
import json
from pathlib import Path

import pytest

from rootwalk.graph import cli
from rootwalk.graph.commands.step_window import parse_moment
from support.jobs import NS, START_UNIX_NS, Fault, Job, write_job
from support.stores import query_rows

FAULT_STEP = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = Job(steps=120, faults=(Fault("contention", 1, 0.1, FAULT_STEP),))
    return write_job(tmp_path_factory.mktemp("window") / "s.duckdb", job)


def window_of(
    store: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int | None, int | None]:
    assert cli.main(["diagnose", str(store), "--json", *options]) == 0
    window = json.loads(capsys.readouterr().out)["window"]
    return window["first_step"], window["last_step"]


def begin_of(store: Path, step: int) -> dt.datetime:
    rows = query_rows(store, "SELECT step, min(start_unix_ns) FROM steps GROUP BY step")
    begin_ns = dict(rows)[step]
    # One microsecond into the step of every rank.
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=begin_ns // 1000 + 1)


def test_times_with_and_without_a_zone(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, last = begin_of(store, 70), begin_of(store, 80)
    zone = dt.timezone(dt.timedelta(hours=5, minutes=30))
    for written in (first.isoformat(), first.astimezone(zone).isoformat(), f"{first:%FT%T.%f}"):
        assert window_of(store, capsys, "--since", written, "--until", last.isoformat()) == (70, 80)


def test_a_time_of_the_day(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = begin_of(store, 75)
    assert window_of(store, capsys, "--since", f"{first:%T.%f}") == (75, 119)


def test_so_long_before_the_last_step(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ((end_ns,),) = query_rows(store, "SELECT max(end_unix_ns) FROM steps")
    ago_ms = round(end_ns / 1e6 - begin_of(store, 100).timestamp() * 1e3)
    first, last = window_of(store, capsys, "--since", f"{ago_ms}ms")
    assert (first, last) in ((99, 119), (100, 119))


def test_until_alone_begins_with_the_job(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert window_of(store, capsys, "--until", begin_of(store, 50).isoformat()) == (0, 50)


def test_the_page_is_of_the_same_steps(store: Path, tmp_path: Path) -> None:
    page, since = tmp_path / "s.html", begin_of(store, 70).isoformat()
    assert cli.main(["report", str(store), "--output", str(page), "--since", since]) == 0
    assert "steps 70 to 119" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--since", "2001-01-01", "--until", "2001-01-02"], "saw none from 2001-01-01T00:00:00Z"),
        (["--since", "2200-01-01"], "saw none from 2200-01-01T00:00:00Z"),
        (["--since", "1s", "--until", "5s"], "needs a part of"),
        (["--since", "10:00", "--steps", "1:2"], "saw --steps beside --since"),
    ],
)
def test_what_chooses_no_step_is_said(
    store: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert cli.main(["diagnose", str(store), *options]) == 2
    assert words in capsys.readouterr().err


def test_a_store_without_steps_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from support.progress_reports import stuck_job, waiting

    store = stuck_job(tmp_path / "s.duckdb", [waiting(), waiting()])
    assert cli.main(["diagnose", str(store), "--since", "1h"]) == 2
    assert "saw no step in the store" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "x", "25:00", "1:2", "10:61", "5", "2026-13-01", "-5m", "1w"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="needs a time such as"):
        parse_moment(text)


def test_a_moment_of_a_job_keeps_its_microseconds() -> None:
    moment = parse_moment("2026-11-29T10:40:05.000123")
    assert moment.at(START_UNIX_NS) % NS == 123_000
