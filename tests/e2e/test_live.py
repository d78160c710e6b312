"""`rootwalk run` tells what is wrong while the job runs: a real job, one rank late for a while."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command import query, torchrun

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
# Whatever else runs on the machine is contention too, and is found: one quiet try of two decides.
pytestmark = [pytest.mark.torch, pytest.mark.long, pytest.mark.flaky(reruns=1)]

SCRIPT = Path(__file__).parents[1] / "support" / "tiny_training.py"
# The step of about 120 ms becomes one of 220 ms.
DEVICE_S = 0.1
TELL_S = 20.0


def await_true(claim: Callable[[], bool], timeout_s: float, what: Callable[[], object]) -> None:
    """Wait until a claim holds."""
    began_s = time.monotonic()
    while not claim():
        assert time.monotonic() - began_s < timeout_s, what()
        time.sleep(0.1)


def test_a_late_rank_is_told_within_twenty_seconds_of_its_onset(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    options = [str(folder), "--steps", "450", "--device-s", str(DEVICE_S)]
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--job", "late", "--store"]
    process = subprocess.Popen(
        [*command, "s.duckdb", "--", *torchrun(2, *options, script=SCRIPT)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []

    def read() -> None:
        assert process.stderr is not None
        with process.stderr:
            while line := process.stderr.readline():
                lines.append(line.rstrip("\n"))

    def steps() -> int:
        log = folder / "rank0.0.jsonl"
        return log.read_text().count("\n") if log.exists() else 0

    def told(start: str) -> list[str]:
        return [line for line in lines if f"late: {start} since step" in line and "rank 1 " in line]

    reader = threading.Thread(target=read)
    reader.start()
    try:
        await_true(lambda: steps() > 100, 120, lambda: lines)
        first_late = steps()
        (folder / "late").touch()
        await_true(lambda: bool(told("slow")), TELL_S, lambda: (steps(), lines))
        (folder / "late").unlink()
        await_true(lambda: bool(told("over")), TELL_S, lambda: (steps(), lines))
        assert process.wait(240) == 0
    finally:
        process.kill()
        process.wait()
        reader.join()

    rows = query(
        tmp_path / "s.duckdb",
        "SELECT first_step, rank, closed_unix_ns IS NULL AS is_open,"
        " (named_unix_ns - onset_unix_ns) / 1e9 AS named_s FROM live_findings WHERE rank = 1",
        cwd=tmp_path,
    )
    assert any(abs(row["first_step"] - first_late) <= 5 for row in rows), rows
    assert not any(row["is_open"] for row in rows)
    assert min(row["named_s"] for row in rows) <= TELL_S
