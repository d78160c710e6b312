"""One run of a case: the job under `rootwalk run`, disturbed in mid-run, and what its own clocks say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import rootwalk.examples
from gauntlet.case import Case, Disturbance, Effect, NeedsEnvironment
from gauntlet.neighbours import MAX_CORES, Neighbours
from gauntlet.workloads import HEALTHY_SHARE
from rootwalk.graph.commands.demo_faults import Target
from rootwalk.graph.commands.demo_job import StepTimes, read_step_times
from rootwalk.instrumentation.errors import RootwalkError
from support.command import torchrun

EXAMPLES = Path(next(iter(rootwalk.examples.__path__))).resolve()
WRAPPER = Path(__file__).with_name("buggy_training.py")
APART = Path(__file__).with_name("launch_ranks.py")
POLL_S = 0.05
# A job takes half a minute; one that takes this long hangs.
JOB_DEADLINE_S = 240.0


@dataclass(frozen=True, slots=True)
class Run:
    """What one run did, by its own clocks and counters: nothing of Rootwalk's is in it.

    Attributes:
        times: The job's own step times.
        effect: What the disturbance has counted; None without one.
        begun_unix_s: When the disturbance began; None without one.
        others_cores: How many cores strangers kept busy meanwhile.
    """

    times: StepTimes
    effect: Effect | None
    begun_unix_s: float | None
    others_cores: float = 0.0


def run_job(
    case: Case, rank: int, folder: Path, extra: tuple[str, ...], max_cores: float = MAX_CORES
) -> Run:
    """Run a case once; the store and the verdict are in the folder afterwards, unread.

    Args:
        case: What to run.
        rank: The rank to disturb.
        folder: Empty, for everything.
        extra: Options of `rootwalk run`.
        max_cores: Strangers may keep so many busy; more where the verdict is not judged.

    Raises:
        UnavailableError: If the disturbance cannot be had here.
        MachineBusyError: If strangers kept the machine busy.
        RootwalkError: If the job failed, or ended before it was disturbed.
    """
    disturbance = None if case.disturbance is None else case.disturbance()
    try:
        if disturbance is not None:
            disturbance.prepare(rank, folder)
        return _run(case, disturbance, rank, folder, extra, max_cores)
    finally:
        if disturbance is not None:
            disturbance.stop()


def _run(
    case: Case,
    disturbance: Disturbance | None,
    rank: int,
    folder: Path,
    extra: tuple[str, ...],
    max_cores: float,
) -> Run:
    command = build_command(
        case, [] if disturbance is None else disturbance.options(), folder, extra
    )
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    if isinstance(disturbance, NeedsEnvironment):
        environment |= disturbance.environment()
    onset = int(case.workload.steps * HEALTHY_SHARE)
    begun: tuple[int, float] | None = None
    with (folder / "output.txt").open("wb") as output:
        job = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
    neighbours = Neighbours()
    deadline_s = time.monotonic() + JOB_DEADLINE_S
    try:
        while job.poll() is None:
            time.sleep(POLL_S)
            neighbours.look()
            neighbours.check(max_cores)
            check_deadline(deadline_s)
            done = count_steps(folder / "steps" / "rank0.jsonl")
            if disturbance is not None and begun is None and done >= onset:
                disturbance.start(find_target(folder / "steps", rank))
                begun = done, time.time()
        effect = None if disturbance is None or begun is None else disturbance.effect()
    except BaseException:
        job.terminate()
        raise
    finally:
        code = job.wait()
    if (code != 0 and not case.may_fail) or (disturbance is not None and begun is None):
        said = (folder / "output.txt").read_text("utf-8", errors="replace")[-1500:]
        raise RootwalkError(f"cannot judge the run: the job ended with {code}: {said}")
    if begun is None:
        return Run(read_step_times(folder / "steps", None), None, None, neighbours.cores)
    times = read_step_times(folder / "steps", begun[0])
    return Run(times, effect, begun[1], neighbours.cores)


def build_command(case: Case, bug: list[str], folder: Path, extra: tuple[str, ...]) -> list[str]:
    """Return the whole command line."""
    work = case.workload
    own = ["--step-log", str(folder / "steps"), "--bind-cores", "--steps", str(work.steps)]
    own += work.options
    if work.is_apart:
        script = [sys.executable, str(APART), str(work.ranks), sys.executable]
        script += [str(EXAMPLES / work.script), *own]
    elif bug:
        script = torchrun(work.ranks, "--script", work.script, *bug, "--", *own, script=WRAPPER)
    else:
        script = torchrun(work.ranks, *own, script=EXAMPLES / work.script)
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--job", "gauntlet"]
    command += ["--store", str(folder / "store.duckdb"), "--json", str(folder / "verdict.json")]
    return [*command, *extra, "--", *script]


def check_deadline(deadline_s: float) -> None:
    """Raise when the job hangs.

    Raises:
        RootwalkError: After the deadline.
    """
    if time.monotonic() > deadline_s:
        raise RootwalkError(f"cannot judge the run: it took more than {JOB_DEADLINE_S} s")


def count_steps(log: Path) -> int:
    """Return how many steps a rank has written down."""
    try:
        return log.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def find_target(logs: Path, rank: int) -> Target:
    """Return a rank as its own log and the script's choice of cores tell."""
    first, *_ = (logs / f"rank{rank}.jsonl").read_text("utf-8").splitlines()
    cores = sorted(os.sched_getaffinity(0))
    return Target(rank, json.loads(first)["pid"], cores[rank % len(cores)])
