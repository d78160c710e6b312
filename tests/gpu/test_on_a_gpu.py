"""What only a machine with an NVIDIA GPU can show: `make test-gpu`. The README says what of it has run on one."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import nvidia_smi
from support.command import EXAMPLE, query, run_rootwalk, torchrun
from support.real_gpu import ON_A_GPU

pytestmark = ON_A_GPU

SIZES = ("--workers", "0", "--width", "512", "--heads", "8", "--window", "256", "--batch", "64")
WARM_STEPS = 30
# Watching a job costs at most so much of its steps.
MAX_OVERHEAD = 0.05
TRACED = 5
DEADLINE_S = 120.0
TOLD = """
SELECT max(attributes ->> '$."hw.id"') AS gpu,
    count(*) FILTER ((attributes ->> '$."training.device.stream_time"')::DOUBLE > 0) AS phases,
    count(*) FILTER ((attributes ->> '$."collective.device_time"')::DOUBLE > 0) AS collectives
FROM spans
"""
KERNELS = """
SELECT step FROM spans WHERE (attributes ->> '$."training.device.kernel_time"')::DOUBLE > 0 GROUP BY step
"""


def job(steps: int, *options: str, ranks: int = 1) -> list[str]:
    """Return the command of a job: one rank has NCCL."""
    return torchrun(ranks, "--steps", str(steps), *SIZES, *options, script=EXAMPLE)


def median_step_s(folder: Path) -> float:
    lines = (folder / "rank0.jsonl").read_text("utf-8").splitlines()[WARM_STEPS:]
    return statistics.median(float(json.loads(line)["seconds"]) for line in lines)


@pytest.mark.parametrize(
    ("ranks", "options"), [(1, ()), (2, ("--share-gpu",))], ids=["NCCL", "two share it"]
)
def test_a_job_tells_its_gpu_and_the_time_on_it(
    tmp_path: Path, ranks: int, options: tuple[str, ...]
) -> None:
    store = tmp_path / "s.duckdb"
    words = ["run", "--job", "gpu", "--store", str(store), "--", *job(200, *options, ranks=ranks)]
    done = run_rootwalk(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    (told,) = query(store, TOLD, cwd=tmp_path)
    (gpu,) = nvidia_smi.ask()[:1]
    assert told["gpu"] == gpu["uuid"]
    assert told["phases"] > 0
    assert (told["collectives"] > 0) is (ranks == 1)  # gloo times nothing
    (called,) = query(
        store,
        "SELECT max(value) AS n FROM metrics WHERE name = 'training.cuda.calls'",
        cwd=tmp_path,
    )
    assert called["n"] > 0


def test_steps_that_are_traced_have_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces, logs = tmp_path / "traces", tmp_path / "steps"
    monkeypatch.setenv("ROOTWALK_TRACE_DIRECTORY", str(traces))
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--job", "gpu"]
    command += ["--store", str(tmp_path / "s.duckdb"), "--", *job(1500, "--step-log", str(logs))]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        deadline_s = time.monotonic() + DEADLINE_S
        log = logs / "rank0.jsonl"
        while not log.exists() or log.read_bytes().count(b"\n") < WARM_STEPS:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        asked = ("level", "2", "--ranks", "0", "--for", "60s", "--trace-steps", str(TRACED))
        assert run_rootwalk(*asked, cwd=tmp_path).returncode == 0
        assert process.wait(DEADLINE_S) == 0
    (trace,) = traces.iterdir()
    store = tmp_path / "trace.duckdb"
    words = ("import", "kineto", str(trace), "--store", str(store), "--job", "gpu-trace")
    assert run_rootwalk(*words, cwd=tmp_path).returncode == 0
    rows = query(store, KERNELS, cwd=tmp_path)
    assert len(rows) == TRACED


def test_what_watching_costs_a_step(tmp_path: Path) -> None:
    """In turns, A B B A, on the job's own clock."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number, is_watched in enumerate((True, False, False, True)):
        folder = tmp_path / f"steps{number}"
        command = job(150, "--step-log", str(folder))
        if is_watched:
            store = str(tmp_path / f"{number}.duckdb")
            done = run_rootwalk("run", "--store", store, "--", *command, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        else:
            subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        seconds[is_watched].append(median_step_s(folder))
    ratio = sum(seconds[True]) / sum(seconds[False]) - 1.0
    told = f"a step takes {sum(seconds[False]) / 2 * 1e3:.1f} ms, {ratio:+.2%} when it is watched"
    sys.stdout.write(f"{told}\n")
    assert ratio < MAX_OVERHEAD
