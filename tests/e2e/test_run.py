"""`rootwalk run` around real jobs: nothing is missed, nothing is left behind, every end has its verdict."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.command import SMALL, processes_mentioning, query, run_rootwalk, torchrun

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.slow]

ORPHANS = """
SELECT count(*) AS n FROM spans child WHERE parent_span_id IS NOT NULL AND NOT EXISTS
(FROM spans parent WHERE parent.trace_id = child.trace_id AND parent.span_id = child.parent_span_id)
"""


@pytest.mark.long
def test_four_ranks_every_step_every_collective_one_trace_a_step(tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = torchrun(4, "--steps", "30", "--step-log", str(log), *SMALL)
    done = run_rootwalk("run", "--job", "four", "--store", "s.duckdb", "--", *job, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    store = tmp_path / "s.duckdb"
    assert not (tmp_path / "s.duckdb.journal").exists()

    logged = {
        (rank, json.loads(line)["step"])
        for rank in range(4)
        for line in (log / f"rank{rank}.jsonl").read_text().splitlines()
    }
    stored = query(store, "SELECT rank, step FROM steps WHERE is_complete", cwd=tmp_path)
    assert {(row["rank"], row["step"]) for row in stored} == logged
    assert len(logged) == 120

    gaps = query(
        store,
        "SELECT rank, communicator_id, min(sequence) AS low, max(sequence) AS high,"
        " count(DISTINCT sequence) AS n FROM collectives GROUP BY ALL",
        cwd=tmp_path,
    )
    assert {(row["low"], row["high"] - row["n"]) for row in gaps} == {(1, 0)}
    assert len({row["high"] for row in gaps}) == 1

    assert query(store, ORPHANS, cwd=tmp_path) == [{"n": 0}]
    roots = query(
        store,
        "SELECT step, count(DISTINCT trace_id) AS traces, count(*) FILTER (parent_span_id IS NULL)"
        " AS roots FROM spans GROUP BY step",
        cwd=tmp_path,
    )
    assert {(row["traces"], row["roots"]) for row in roots} == {(1, 1)}


@pytest.mark.long
def test_tree_of_a_step(tmp_path: Path) -> None:
    job = torchrun(2, "--steps", "25", *SMALL)
    done = run_rootwalk("run", "--job", "tree", "--store", "s.duckdb", "--", *job, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    edges = query(
        tmp_path / "s.duckdb",
        "SELECT DISTINCT parent.name || ' > ' || child.name AS edge FROM spans child JOIN spans parent"
        " ON parent.trace_id = child.trace_id AND parent.span_id = child.parent_span_id"
        " WHERE child.name NOT LIKE 'stall.%'",
        cwd=tmp_path,
    )
    assert {row["edge"] for row in edges} >= {
        "training.step > training.rank_step",
        "training.rank_step > data_load",
        "training.rank_step > forward",
        "training.rank_step > backward",
        "training.rank_step > optimizer",
        "backward > collective.all_reduce",
    }


@pytest.mark.long
@pytest.mark.parametrize("victim", ["receive", "agent"])
def test_helper_killed_in_mid_run(tmp_path: Path, victim: str) -> None:
    log = tmp_path / "log"
    job = torchrun(2, "--steps", "250", "--step-log", str(log), *SMALL)
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--job", f"kill-{victim}"]
    process = subprocess.Popen(
        [*command, "--store", "s.duckdb", "--", *job],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    path = log / "rank0.jsonl"
    deadline = time.monotonic() + 120
    while not (path.exists() and path.read_text().count("\n") > 40):
        assert time.monotonic() < deadline, "the job made no progress"
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    killed = 0
    for child in children(process.pid):
        if f"rootwalk.graph {victim}" in child[1]:
            os.kill(child[0], signal.SIGKILL)
            killed += 1
    assert killed == 1
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "starting it again" in output
    counted = query(
        tmp_path / "s.duckdb",
        "SELECT rank, count(DISTINCT step) AS n FROM steps WHERE is_complete GROUP BY rank",
        cwd=tmp_path,
    )
    assert {row["n"] for row in counted} == {250}
    assert processes_mentioning(f"kill-{victim}") == []


def children(parent: int) -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append((int(entry.name), line))
    return found


@pytest.mark.long
def test_job_that_fails_keeps_its_exit_code_and_gets_its_verdict(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import sys, torch, rootwalk.examples.train_ddp as example\n"
        "sys.argv += ['--steps', '30']\n"
        "example.main()\n"
        "sys.exit(7)\n"
    )
    done = run_rootwalk(
        "run", "--job", "fails", "--store", "s.duckdb", "--", sys.executable, str(script), *SMALL,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert "exit code 7" in done.stderr
    said = " ".join(done.stdout.split())
    assert re.search("job failed after step 29.*exit code 7", said), done.stdout
    assert not re.search("^healthy", done.stdout, re.MULTILINE)
    assert query(tmp_path / "s.duckdb", "SELECT steps FROM jobs", cwd=tmp_path) == [{"steps": 30}]


def test_killed_job_returns_128_and_the_signal(tmp_path: Path) -> None:
    done = run_rootwalk(
        "run", "--store", "s.duckdb", "--", sys.executable, "-c",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 137
    assert "killed by SIGKILL" in done.stderr


@pytest.mark.long
def test_rank_that_dies_in_step_one(tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, signal, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(10):\n"
        "    loss = model(torch.ones(4)).sum()\n"
        "    if step == 1 and dist.get_rank() == 1:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    job = torchrun(2, script=script)
    done = run_rootwalk("run", "--job", "dies", "--store", "s.duckdb", "--", *job, cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout
    said = " ".join(done.stdout.split())
    assert "job failed after step 0: rank 1 was killed by SIGKILL" in said
    rows = query(
        tmp_path / "s.duckdb",
        "SELECT rank, step, is_complete FROM steps WHERE rank = 1 ORDER BY step",
        cwd=tmp_path,
    )
    assert rows == [
        {"rank": 1, "step": 0, "is_complete": True},
        {"rank": 1, "step": 1, "is_complete": False},
    ]


def test_command_without_a_single_step(tmp_path: Path) -> None:
    done = run_rootwalk("run", "--store", "s.duckdb", "--", "true", cwd=tmp_path)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "step" in done.stdout + done.stderr


@pytest.mark.long
def test_second_run_of_a_job_into_its_store_is_refused(tmp_path: Path) -> None:
    job = [sys.executable, torchrun(1)[-1], "--steps", "3", *SMALL]
    arguments = ("run", "--job", "twice", "--store", "s.duckdb", "--", *job)
    assert run_rootwalk(*arguments, cwd=tmp_path).returncode == 0
    again = run_rootwalk(*arguments, cwd=tmp_path)
    assert again.returncode == 2
    assert 'cannot record job "twice"' in again.stderr
    assert "loss" not in again.stdout


def test_signal_for_the_job_reaches_the_job(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9))\n"
        "open('ready', 'w').close()\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--store", "s.duckdb", "--"]
    process = subprocess.Popen(
        [*command, sys.executable, "-c", script],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 9


@pytest.mark.long
def test_one_rank_without_a_launcher(tmp_path: Path) -> None:
    job = [sys.executable, torchrun(1)[-1], "--steps", "40", *SMALL]
    done = run_rootwalk("run", "--store", "s.duckdb", "--", *job, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    counted = query(tmp_path / "s.duckdb", "SELECT count(*) AS n FROM steps", cwd=tmp_path)
    assert counted == [{"n": 40}]


@pytest.mark.parametrize("sensor", ["bpf", pytest.param("instrumentation", marks=pytest.mark.long)])
def test_without_a_sensor(tmp_path: Path, sensor: str) -> None:
    job = torchrun(2, "--steps", "40", *SMALL)
    done = run_rootwalk(
        "run", "--without", sensor, "--json", "v.json", "--store", "s.duckdb", "--", *job,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    verdict = json.loads((tmp_path / "v.json").read_text())
    # Nobody can be named by a sensor that is not there.
    assert [finding["subject"]["aggressor"] for finding in verdict["findings"]].count(None) == len(
        verdict["findings"]
    )
    if sensor == "instrumentation":
        assert verdict["outcome"] == "insufficient_evidence"
    if sensor == "bpf":
        assert "sched" in {item["sensor"] for item in verdict["missing_sensors"]}
        rows = query(
            tmp_path / "s.duckdb",
            "SELECT DISTINCT sensor FROM steps WHERE step > 10 AND sensor IS NOT NULL",
            cwd=tmp_path,
        )
        assert rows == [{"sensor": "proc"}]


@pytest.mark.parametrize(
    ("arguments", "saw"),
    [
        ((), "no command"),
        (("--", "no-such-command-anywhere"), "no such command"),
        (("--endpoint", "http://127.0.0.1:9", "--store", "s", "--", "true"), "--store"),
    ],
)
def test_usage_errors(tmp_path: Path, arguments: tuple[str, ...], saw: str) -> None:
    done = run_rootwalk("run", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert saw in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--store", "--json"])
def test_folder_that_does_not_exist(tmp_path: Path, option: str) -> None:
    path = tmp_path / "no" / "such" / "file"
    done = run_rootwalk("run", option, str(path), "--", "true", cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert "cannot" in done.stderr
    assert "Traceback" not in done.stderr
    assert not path.parent.exists()


def test_foreign_store_is_left_alone(tmp_path: Path) -> None:
    store = tmp_path / "notes.duckdb"
    store.write_text("not a database")
    done = run_rootwalk("run", "--store", str(store), "--", "true", cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot" in done.stderr
    assert "Traceback" not in done.stderr
    assert store.read_text() == "not a database"
