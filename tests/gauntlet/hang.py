"""One run of a case that ends in a hang: ranks without a launcher, each with a watchdog, and what their dumps say."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootwalk.instrumentation.errors import RootwalkError

SCRIPT = Path(__file__).with_name("hanging_training.py")
LAUNCHER = Path(__file__).with_name("launch_ranks.py")
ROOTWALK = (sys.executable, "-m", "rootwalk.graph")
# One name, so that what was seen and what was dumped are of one job.
JOB = "gauntlet"
SMALL = ("--width", "32", "--layers", "1", "--heads", "2", "--window", "32", "--batch", "2")
STEPS = 4000
BUG_STEP = 15
DEADLINE_S = 240.0


@dataclass(frozen=True, slots=True)
class Hang:
    """What one run did.

    Attributes:
        begun_unix_s: When the bug was reached by its own clock; None when it was not.
        steps: Steps that each rank has ended.
        dumps: Ranks that left a dump.
    """

    begun_unix_s: float | None
    steps: dict[int, int]
    dumps: tuple[int, ...]

    def find_invalid(self) -> str | None:
        """Return why the run does not count; None when it does."""
        if self.begun_unix_s is None:
            return "the bug was not reached"
        done = max(self.steps.values())
        return None if done < STEPS else "the job went on to its end"


def run_hang(
    bug: str, rank: int, ranks: int, script: str, folder: Path, profile_hz: int = 0
) -> Hang:
    """Run the job until every rank has left.

    Args:
        bug: What the rank does, of `hanging_training.py`.
        rank: The rank that does it.
        ranks: Of the job.
        script: File of `examples/`.
        folder: Empty, for everything.
        profile_hz: How often the ranks' stacks are taken meanwhile, into the store; 0 for a job that nobody watches.

    Raises:
        RootwalkError: If a rank does not.
    """
    dumps, logs = folder / "dumps", folder / "steps"
    dumps.mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, str(SCRIPT), "--script", script, "--bug", bug]
    command += ["--bug-ranks", str(rank), "--bug-step", str(BUG_STEP), "--dumps", str(dumps), "--"]
    command += ["--steps", str(STEPS), "--step-log", str(logs), "--workers", "0", *SMALL]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    common |= {"TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(LAUNCHER), str(ranks), *command]
    if profile_hz:
        watched = ["run", "--store", str(folder / "store.duckdb"), "--job", JOB]
        command = [*ROOTWALK, *watched, "--profile-hz", str(profile_hz), "--", *command]
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | common, stdout=output, stderr=output
        )
    try:
        process.wait(DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise RootwalkError("cannot judge the run: a rank did not leave") from error
    finally:
        process.terminate()
        process.wait()
    told = dumps / "bug.json"
    begun_s = json.loads(told.read_text("utf-8"))["unix_s"] if told.exists() else None
    steps = {n: count_lines(logs / f"rank{n}.jsonl") for n in range(ranks)}
    left = tuple(n for n in range(ranks) if (dumps / f"nccl_trace_rank_{n}").exists())
    return Hang(begun_s, steps, left)


def count_lines(path: Path) -> int:
    """Return how many lines a file has; 0 without it."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def diagnose_dumps(folder: Path) -> dict[str, Any]:
    """Import the dumps as a user would, and return the verdict.

    Raises:
        RootwalkError: If there is none.
    """
    dumps = [str(path) for path in sorted((folder / "dumps").glob("nccl_trace_rank_*"))]
    store = str(folder / "store.duckdb")
    said = ""
    for words in (
        ["import", "flight-recorder", *dumps, "--store", store, "--job", JOB],
        ["diagnose", store, "--json"],
    ):
        done = subprocess.run([*ROOTWALK, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RootwalkError(f"cannot judge the run: {words[0]}: {done.stderr[-1000:]}")
        said = done.stdout
    (folder / "verdict.json").write_text(said, encoding="utf-8")
    verdict: dict[str, Any] = json.loads(said)
    return verdict
