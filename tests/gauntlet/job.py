"""One run of a case: the job under `rootwalk run`, disturbed in mid-run, and what its own clocks say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import rootwalk.examples
from gauntlet.alternation import Switch, find_cost, is_block_over, plan
from gauntlet.case import CanPause, Case, Disturbance, Effect, NeedsEnvironment
from gauntlet.neighbours import MAX_CORES, Neighbours
from gauntlet.step_logs import count_steps, find_added, find_stretch, slowest_stretch
from rootwalk.graph.commands.demo_faults import Target
from rootwalk.graph.commands.demo_job import StepTimes, read_step_times
from rootwalk.instrumentation.errors import RootwalkError
from support.command import torchrun
from support.machine_speed import MachineSpeed

EXAMPLES = Path(next(iter(rootwalk.examples.__path__))).resolve()
WRAPPER = Path(__file__).with_name("buggy_training.py")
APART = Path(__file__).with_name("launch_ranks.py")
POLL_S = 0.05
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
        added: How much longer the middle step with the disturbance took than that before it, as a part; where it was
            switched off and on, than without it beside. A mean would have what the machine itself does to some steps;
            it is what a fault is held against, whose seconds it has.
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
        switches: Times that it was switched off and on since.
    """

    onset_step: int | None = None
    begun_unix_s: float | None = None
    switches: list[Switch] = field(default_factory=list)


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
    logs, steps = folder / "steps", plan(case, disturbance).steps
    neighbours, progress, speed = Neighbours(), Progress(), MachineSpeed()
    deadline_s = time.monotonic() + JOB_DEADLINE_S
    has_ended = False
    try:
        with speed:
            while not has_ended and time.monotonic() < deadline_s:
                time.sleep(POLL_S)
                neighbours.look()
                neighbours.check(max_cores)
                follow(case, disturbance, rank, logs, progress)
                has_ended = job.poll() is not None
        is_disturbed = disturbance is not None and progress.begun_unix_s is not None
        effect = disturbance.effect() if disturbance is not None and is_disturbed else None
    finally:
        code = end_job(job)
    if not has_ended:
        # What it wrote because it was told to end came too late.
        (folder / "verdict.json").unlink(missing_ok=True)
    is_done = case.may_fail or has_done_all(case, steps, logs) or (has_ended and code == 0)
    if not is_done or (disturbance is not None and not is_disturbed):
        ended = f"ended with {code}" if has_ended else f"took more than {JOB_DEADLINE_S:.0f} s"
        said = (folder / "output.txt").read_text("utf-8", errors="replace")[-MOST_WORDS:]
        # The sentence is kept with the results: where a file lies on this machine is nobody's business.
        told = re.sub(r"/\S*/", "", said)
        raise RootwalkError(f"cannot judge the run: the job {ended}: {told}")
    # A job that is killed by what is done to it may have done no step with it.
    is_shown = not case.may_fail or has_done_all(case, steps, logs)
    times = read_step_times(logs, progress.onset_step if is_shown else None)
    stretch = find_stretch(logs)
    if progress.switches:
        added = find_cost(logs, progress.switches)
    else:
        added = find_added(logs, progress.onset_step if is_shown else None)
    begun_unix_s = progress.begun_unix_s
    slow_cpu = max(slowest_stretch([took for _, took in looks]) for looks in speed.looks.values())
    return Run(times, effect, begun_unix_s, neighbours.cores, stretch, added, slow_cpu)


def start_job(
    case: Case, disturbance: Disturbance | None, folder: Path, extra: tuple[str, ...]
) -> subprocess.Popen[bytes]:
    """Start the job under `rootwalk run`; what both say goes to a file."""
    bug = [] if disturbance is None else disturbance.options()
    command = build_command(case, plan(case, disturbance).steps, bug, folder, extra)
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
    """Look how far the job is, and disturb it, or leave it alone for a while, when it is time to."""
    if disturbance is None:
        return
    log, schedule = logs / "rank0.jsonl", plan(case, disturbance)
    done = count_steps(log)
    if progress.onset_step is None:
        if done >= schedule.onset:
            # To start may take a while: no finding is before the time, and no step after the number is without it.
            begun_unix_s = time.time()
            disturbance.start(find_target(logs, rank))
            progress.onset_step = count_steps(log)
            progress.begun_unix_s = begun_unix_s
        return
    is_time = schedule.alternates is not None and schedule.alternates <= done < schedule.steps
    if is_time and isinstance(disturbance, CanPause) and is_block_over(done, progress.switches):
        is_on = bool(progress.switches) and not progress.switches[-1].is_on
        (disturbance.resume if is_on else disturbance.pause)()
        progress.switches.append(Switch(is_on, done, count_steps(log)))


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


def has_done_all(case: Case, steps: int, logs: Path) -> bool:
    """Whether every rank has written down all its steps."""
    return all(
        count_steps(logs / f"rank{number}.jsonl") >= steps for number in range(case.workload.ranks)
    )


def build_command(
    case: Case, steps: int, bug: list[str], folder: Path, extra: tuple[str, ...]
) -> list[str]:
    """Return the whole command line."""
    work = case.workload
    own = ["--step-log", str(folder / "steps"), "--bind-cores", "--steps", str(steps)]
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


def find_target(logs: Path, rank: int) -> Target:
    """Return a rank as its own log and the script's choice of cores tell."""
    first, *_ = (logs / f"rank{rank}.jsonl").read_text("utf-8").splitlines()
    cores = sorted(os.sched_getaffinity(0))
    return Target(rank, json.loads(first)["pid"], cores[rank % len(cores)])
