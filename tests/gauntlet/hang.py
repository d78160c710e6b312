"""One run of a case that ends in a hang: ranks without a launcher, each with a watchdog, and what their dumps say."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gauntlet.case import Case, Disturbance, Effect, NeedsEnvironment
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


class VerdictError(RootwalkError):
    """Dumps that are there could not be imported or diagnosed: no fault of the run."""


@dataclass(frozen=True, slots=True)
class Hang:
    """What one run did.

    Attributes:
        begun_unix_s: When the bug was reached by its own clock; None when it was not.
        steps: Steps that each rank has ended.
        dumps: Ranks that left a dump.
        effect: What a disturbance has counted; None without one.
    """

    begun_unix_s: float | None
    steps: dict[int, int]
    dumps: tuple[int, ...]
    effect: Effect | None = None

    def find_invalid(self) -> str | None:
        """Return why the run does not count; None when it does."""
        if self.begun_unix_s is None:
            return "the bug was not reached"
        if max(self.steps.values()) >= STEPS:
            return "the job went on to its end"
        if self.effect is not None and not self.effect.is_enough:
            return f"took no effect: {self.effect.amount:.2f} {self.effect.unit}"
        return None if self.dumps else "no rank left a dump"


def run_hang(case: Case, rank: int, folder: Path, extra: Sequence[str] = ()) -> Hang:
    """Run the job until every rank has left; a disturbance of the case is there from its start on.

    Args:
        case: What a rank does, in which job, and whether stacks are taken of it meanwhile.
        rank: The rank that does it.
        folder: Empty, for everything.
        extra: Options of `rootwalk run`, where it watches.

    Raises:
        RootwalkError: If a rank does not leave.
        UnavailableError: If the disturbance cannot be had here.
    """
    disturbance = None if case.disturbance is None else case.disturbance()
    try:
        if disturbance is not None:
            disturbance.prepare(rank, folder)
        return _run(case, disturbance, rank, folder, extra)
    finally:
        if disturbance is not None:
            disturbance.stop()


def _run(
    case: Case, disturbance: Disturbance | None, rank: int, folder: Path, extra: Sequence[str]
) -> Hang:
    ranks = case.workload.ranks
    dumps, logs = folder / "dumps", folder / "steps"
    dumps.mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    assert case.hang is not None
    command = [sys.executable, str(SCRIPT), "--script", case.workload.script, "--bug", case.hang]
    command += ["--bug-ranks", str(rank), "--bug-step", str(BUG_STEP), "--dumps", str(dumps)]
    command += [*([] if disturbance is None else disturbance.options()), "--"]
    command += ["--steps", str(STEPS), "--step-log", str(logs), "--workers", "0", *SMALL]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    common |= {"TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(LAUNCHER), str(ranks), *command]
    if isinstance(disturbance, NeedsEnvironment):
        common |= disturbance.environment()
    if case.profile_hz:
        watched = ["run", "--store", str(folder / "store.duckdb"), "--job", JOB, *extra]
        command = [*ROOTWALK, *watched, "--profile-hz", str(case.profile_hz), "--", *command]
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
    return Hang(begun_s, steps, left, None if disturbance is None else disturbance.effect())


def count_lines(path: Path) -> int:
    """Return how many lines a file has; 0 without it."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def diagnose_dumps(folder: Path) -> dict[str, Any]:
    """Import the dumps as a user would, and return the verdict.

    Raises:
        VerdictError: If there is none.
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
            raise VerdictError(f"cannot {words[0]} the dumps: {done.stderr[-1000:]}")
        said = done.stdout
    (folder / "verdict.json").write_text(said, encoding="utf-8")
    verdict: dict[str, Any] = json.loads(said)
    return verdict
