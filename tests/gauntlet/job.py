"""One run of a case: the job under `rootwalk run`, disturbed in mid-run, and what its own clocks say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

import rootwalk.examples
from gauntlet.case import Case, Disturbance, Effect, NeedsEnvironment
from gauntlet.neighbours import MAX_CORES, Neighbours
from gauntlet.workloads import HEALTHY_SHARE
from rootwalk.graph.commands.demo_faults import Target
from rootwalk.graph.commands.demo_job import StepTimes, read_step_times
from rootwalk.instrumentation.errors import RootwalkError
from support.command import torchrun
from support.machine_speed import MachineSpeed

EXAMPLES = Path(next(iter(rootwalk.examples.__path__))).resolve()
WRAPPER = Path(__file__).with_name("buggy_training.py")
APART = Path(__file__).with_name("launch_ranks.py")
POLL_S = 0.05
# Imports and first touch are over.
WARM_STEPS = 10
# So many steps are a stretch, and it takes so many before it to say what is usual.
STRETCH_STEPS, USUAL_STEPS = 10, 20
# A job takes half a minute; one that takes this long hangs.
JOB_DEADLINE_S = 240.0
# A job that is told to end has so long.
GRACE_S = 30.0
# Of what a job has said, the last characters.
MOST_WORDS = 1500


@dataclass(frozen=True, slots=True)
class Run:
    """What one run did, by its own clocks and counters: nothing of Rootwalk's is in it.

    Attributes:
        times: The job's own step times.
        effect: What the disturbance has counted; None without one.
        begun_unix_s: When the disturbance began; None without one.
        others_cores: How many cores strangers kept busy meanwhile.
        slow_stretch: How much longer the steps of some stretch took, on every rank, than those before it, as a part.
        added: How much longer the middle step with the disturbance took than that before it, as a part. A mean would
            have what the machine itself does to some steps; it is what a fault is held against, whose seconds it has.
        slow_cpu: The same of a little work on the CPU that became slowest: of use to who looks at a wrong run.
    """

    times: StepTimes
    effect: Effect | None
    begun_unix_s: float | None
    others_cores: float = 0.0
    slow_stretch: float = 0.0
    added: float = 0.0
    slow_cpu: float = 0.0


@dataclass(slots=True)
class Progress:
    """How far a job has come, by its own step logs.

    Attributes:
        onset_step: The step in which the disturbance began; None until then.
        begun_unix_s: Just before it began; None until then.
    """

    onset_step: int | None = None
    begun_unix_s: float | None = None


def run_job(
    case: Case, rank: int, folder: Path, extra: tuple[str, ...], max_cores: float = MAX_CORES
) -> Run:
    """Run a case once; the store and the verdict are in the folder afterwards, unread.

    Where the job did all its steps and `rootwalk run` failed, or did not end, the run counts: a verdict that is missing
    then is Rootwalk's own doing.

    Args:
        case: What to run.
        rank: The rank to disturb.
        folder: Empty, for everything.
        extra: Options of `rootwalk run`.
        max_cores: Strangers may keep so many busy; more where the verdict is not judged.

    Raises:
        UnavailableError: If the disturbance cannot be had here.
        MachineBusyError: If strangers kept the machine busy.
        RootwalkError: If the job did not do all its steps, or ended before it was disturbed.
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
    job = start_job(case, disturbance, folder, extra)
    neighbours, progress, speed = Neighbours(), Progress(), MachineSpeed()
    deadline_s = time.monotonic() + JOB_DEADLINE_S
    has_ended = False
    try:
        with speed:
            while not has_ended and time.monotonic() < deadline_s:
                time.sleep(POLL_S)
                neighbours.look()
                neighbours.check(max_cores)
                follow(case, disturbance, rank, folder / "steps", progress)
                has_ended = job.poll() is not None
        is_disturbed = disturbance is not None and progress.begun_unix_s is not None
        effect = disturbance.effect() if disturbance is not None and is_disturbed else None
    finally:
        code = end_job(job)
    if not has_ended:
        # What it wrote because it was told to end came too late.
        (folder / "verdict.json").unlink(missing_ok=True)
    is_done = case.may_fail or has_done_all(case, folder / "steps") or (has_ended and code == 0)
    if not is_done or (disturbance is not None and not is_disturbed):
        ended = f"ended with {code}" if has_ended else f"took more than {JOB_DEADLINE_S:.0f} s"
        said = (folder / "output.txt").read_text("utf-8", errors="replace")[-MOST_WORDS:]
        # The sentence is kept with the results: where a file lies on this machine is nobody's business.
        told = re.sub(r"/\S*/", "", said)
        raise RootwalkError(f"cannot judge the run: the job {ended}: {told}")
    # A job that is killed by what is done to it may have done no step with it.
    is_shown = not case.may_fail or has_done_all(case, folder / "steps")
    times = read_step_times(folder / "steps", progress.onset_step if is_shown else None)
    stretch = find_stretch(folder / "steps")
    added = find_added(folder / "steps", progress.onset_step if is_shown else None)
    begun_unix_s = progress.begun_unix_s
    slow_cpu = max(slowest_stretch([took for _, took in looks]) for looks in speed.looks.values())
    return Run(times, effect, begun_unix_s, neighbours.cores, stretch, added, slow_cpu)


def start_job(
    case: Case, disturbance: Disturbance | None, folder: Path, extra: tuple[str, ...]
) -> subprocess.Popen[bytes]:
    """Start the job under `rootwalk run`; what both say goes to a file."""
    bug = [] if disturbance is None else disturbance.options()
    command = build_command(case, bug, folder, extra)
    environment = {"OMP_NUM_THREADS": "1"} | os.environ
    if not case.workload.is_on_gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if isinstance(disturbance, NeedsEnvironment):
        environment |= disturbance.environment()
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)


def follow(
    case: Case, disturbance: Disturbance | None, rank: int, logs: Path, progress: Progress
) -> None:
    """Look how far the job is, and disturb it when it is time to."""
    done = count_steps(logs / "rank0.jsonl")
    is_due = progress.onset_step is None and done >= int(case.workload.steps * HEALTHY_SHARE)
    if disturbance is not None and is_due:
        # To start may take a while: no finding is before the time, and no step after the number is without it.
        begun_unix_s = time.time()
        disturbance.start(find_target(logs, rank))
        progress.onset_step = count_steps(logs / "rank0.jsonl")
        progress.begun_unix_s = begun_unix_s


def end_job(job: subprocess.Popen[bytes]) -> int:
    """End a job if it has not ended, with all that it has started; return its code."""
    if job.poll() is None:
        started = psutil.Process(job.pid).children(recursive=True)
        job.terminate()
        try:
            job.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            job.kill()
            for process in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
    return job.wait()


def has_done_all(case: Case, logs: Path) -> bool:
    """Whether every rank has written down all its steps."""
    return all(
        count_steps(logs / f"rank{number}.jsonl") >= case.workload.steps
        for number in range(case.workload.ranks)
    )


def find_stretch(logs: Path) -> float:
    """Return how much longer the steps of some stretch took, on every rank, than those before it, as a part."""
    return min(
        (slowest_stretch(read_seconds(path)) for path in logs.glob("rank*.jsonl")), default=0.0
    )


def find_added(logs: Path, onset_step: int | None) -> float:
    """Return how much longer the middle step after some step took than that before it, on the rank of the most."""
    if onset_step is None:
        return 0.0
    ranks = [read_seconds(path) for path in logs.glob("rank*.jsonl")]
    return max(
        (
            statistics.median(step_s[onset_step + 1 :])
            / statistics.median(step_s[WARM_STEPS:onset_step])
            - 1.0
            for step_s in ranks
        ),
        default=0.0,
    )


def read_seconds(log: Path) -> list[float]:
    """Return the times of a rank's steps, s, in order."""
    return [json.loads(line)["seconds"] for line in log.read_text("utf-8").splitlines()]


def slowest_stretch(step_s: list[float]) -> float:
    """Return how much longer the middle of some stretch of steps took than what is usual before it; 0 for few."""
    warm_s = step_s[WARM_STEPS:]
    return max(
        (
            statistics.median(warm_s[start : start + STRETCH_STEPS])
            / statistics.median(warm_s[:start])
            - 1.0
            for start in range(USUAL_STEPS, len(warm_s) - STRETCH_STEPS + 1)
        ),
        default=0.0,
    )


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
