"""`rootwalk import` as a command: what it says, a kill in its middle, and the verdict of what it imported."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.verdict import to_object
from rootwalk.instrumentation.errors import StoreError
from support.command import run_rootwalk
from support.job_files import job_lines
from support.jobs import Fault, Job, write_job
from support.otlp_load import metric_body, trace_templates
from support.stores import query_rows
from support.verdicts import check_verdict

SLOW = Job(ranks=4, faults=(Fault("contention", 2, 0.05, 40),))
HEALTHY = Job(ranks=2, jitter_ratio=0.02)


def test_answer_errors_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "job.jsonl").write_bytes(job_lines(dataclasses.replace(HEALTHY, steps=3)))
    (tmp_path / "bad.jsonl").write_bytes(b"{\n" * 20)
    options = ("--store", "new.duckdb")

    good = run_rootwalk("import", "otlp", "job.jsonl", *options, cwd=tmp_path)
    again = run_rootwalk("import", "otlp", "job.jsonl", *options, cwd=tmp_path)
    bad = run_rootwalk("import", "otlp", "bad.jsonl", "job.jsonl", *options, cwd=tmp_path)
    strict = run_rootwalk(
        "import", "otlp", "bad.jsonl", "job.jsonl", "--strict", *options, cwd=tmp_path
    )

    count = query_rows(tmp_path / "new.duckdb", "SELECT count(*) FROM spans")[0][0]
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout == f"1 file into new.duckdb: {count} spans\n"
    known = f"nothing new; {count} records were there already"
    assert again.stdout == f"1 file into new.duckdb: {known}\n"
    assert (bad.returncode, bad.stdout) == (1, f"2 files into new.duckdb: {known}; 1 file broken\n")
    assert bad.stderr.splitlines()[0].startswith(
        'rootwalk import: "bad.jsonl", line 1: cannot read'
    )
    # Five of twenty are told.
    assert bad.stderr.count(", line ") == 5
    assert "and more" in bad.stderr
    assert strict.returncode == 1
    assert strict.stdout == "1 file into new.duckdb: nothing new; 1 file broken\n"
    assert strict.stderr.count(", line ") == 1


@pytest.mark.parametrize(
    ("words", "saw"),
    [
        (("teapot", "f", "--store", "s.duckdb"), "invalid choice: 'teapot'"),
        (("otlp", "f"), "--store"),
        (("otlp", "--store", "s.duckdb"), "PATH"),
    ],
)
def test_wrong_use(words: tuple[str, ...], saw: str, tmp_path: Path) -> None:
    done = run_rootwalk("import", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert saw in done.stderr


def test_a_store_that_is_none_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "job.jsonl").write_bytes(job_lines(dataclasses.replace(HEALTHY, steps=3)))
    (tmp_path / "text").write_text("mine")

    done = run_rootwalk("import", "otlp", "job.jsonl", "--store", "text", cwd=tmp_path)

    assert done.returncode == 1
    assert f'cannot open the store "{tmp_path / "text"}"' in done.stderr
    assert (tmp_path / "text").read_text() == "mine"


def test_progress_is_on_a_terminal_only(tmp_path: Path) -> None:
    (tmp_path / "job.jsonl").write_bytes(job_lines(dataclasses.replace(HEALTHY, steps=3)))
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "rootwalk.graph",
        "import",
        "otlp",
        "job.jsonl",
        "--store",
        "a",
    ]
    try:
        done = subprocess.run(
            command, cwd=tmp_path, stderr=theirs, stdout=subprocess.PIPE, check=False, timeout=60
        )
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)

    assert done.returncode == 0
    assert "file 1 of 1" in shown
    assert shown.endswith("\r\x1b[K")


@pytest.mark.long
def test_killed_in_the_middle_and_run_again(tmp_path: Path) -> None:
    # Some batches of spans, and points, which no ids keep from being stored twice.
    templates = trace_templates(1000)
    requests = [templates[n % 8].with_ids(1000 * n + 1) for n in range(300)]
    requests += [metric_body(10 * n) for n in range(1, 51)]
    points = sum(10 * n for n in range(1, 51))
    content = b"".join(len(body).to_bytes(4) + body for body in requests[::-1])
    (tmp_path / "file").write_bytes(content)
    store = tmp_path / "store.duckdb"
    command = [
        sys.executable,
        "-m",
        "rootwalk.graph",
        "import",
        "otlp",
        "file",
        "--store",
        str(store),
    ]

    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 120
        while not count_requests(store) and process.poll() is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL
    stored = count_requests(store)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert 0 < stored < len(requests)
    assert (done.returncode, done.stderr) == (0, "")
    assert query_rows(store, "SELECT count(*), count(DISTINCT (trace_id, span_id)) FROM spans") == [
        (300_000, 300_000)
    ]
    assert query_rows(store, "SELECT count(*) FROM metrics") == [(points,)]


def count_requests(store: Path) -> int:
    with contextlib.suppress(StoreError):
        return int(query_rows(store, "SELECT count(*) FROM imported_requests")[0][0])
    return 0


@pytest.mark.parametrize("job", [SLOW, HEALTHY], ids=["slow", "healthy"])
def test_an_imported_job_has_the_verdict_of_a_received_one(job: Job, tmp_path: Path) -> None:
    (tmp_path / "job.jsonl").write_bytes(job_lines(job))
    done = run_rootwalk("import", "otlp", "job.jsonl", "--store", "imported.duckdb", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")

    received = to_object(diagnose(write_job(tmp_path / "received.duckdb", job)))
    imported = to_object(check_verdict(diagnose(tmp_path / "imported.duckdb")))

    del received["cost"], imported["cost"]
    assert imported == received
    assert imported["outcome"] == ("finding" if job is SLOW else "healthy")
