"""The demo's training job: started under `rootwalk run`, disturbed in mid-run, and timed by its own clock."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rootwalk.graph.commands.demo_faults import TRAINING_SCRIPT, Fault, Target

__all__ = [
    "JobPlan",
    "StepTimes",
    "build_command",
    "count_steps",
    "find_target",
    "job_environment",
    "read_step_times",
    "train",
]

logger = logging.getLogger(__name__)

# The first steps of a process are slow (imports, first touch of memory); they are no truth about anything.
COLD_STEPS = 10
# The fault begins here: enough history before it, enough steps with it.
HEALTHY_SHARE = 0.6
POLL_S = 0.05
PROFILED_BUDGET = "0.05"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What to train.

    Attributes:
        ranks: Processes.
        steps: Optimiser updates.
        workers: Loader processes of each rank.
        fault_rank: The rank to disturb.
        store: Where the telemetry goes.
        folder: For step logs and the verdict.
        profile_hz: Stacks a second and CPU; 0 for none.
    """

    ranks: int
    steps: int
    workers: int
    fault_rank: int
    store: Path
    folder: Path
    profile_hz: int = 0

    @property
    def step_logs(self) -> Path:
        """Folder of the ranks' own step clocks."""
        return self.folder / "steps"

    @property
    def verdict(self) -> Path:
        """File of the verdict."""
        return self.folder / "verdict.json"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What the job's own step clock says, apart from everything that Rootwalk measured.

    Attributes:
        healthy_s: Median step before the fault of the rank that has the longest, s.
        faulty_s: Mean step while the fault was on, its quiet steps included, of the rank that has the longest, s; None
            without a fault.
        onset_step: First step that began after the fault did; None without a fault.
    """

    healthy_s: float
    faulty_s: float | None
    onset_step: int | None


def train(plan: JobPlan, fault: Fault | None) -> tuple[int, int | None]:
    """Run the job with the fault in it; return (exit code, the step in which the fault began).

    Raises:
        UnavailableError: If the fault cannot be started; the job has been ended then.
    """
    logger.info("training on %d ranks for %d steps", plan.ranks, plan.steps)
    job = subprocess.Popen(build_command(plan, fault), env=job_environment())  # noqa: S603  (our own command)
    fault_step: int | None = None
    try:
        while job.poll() is None:
            time.sleep(POLL_S)
            if fault is None or fault_step is not None:
                continue
            done = count_steps(plan.step_logs / "rank0.jsonl")
            if done >= int(plan.steps * HEALTHY_SHARE):
                fault.start(find_target(plan))
                fault_step = done
                logger.info("step %d: %s", done, fault.describe())
    except KeyboardInterrupt:
        job.terminate()  # the job's own Ctrl-C may not have reached it; `run` passes this on
    except BaseException:
        job.terminate()
        raise
    finally:
        code = job.wait()
    return code, fault_step


def job_environment() -> dict[str, str]:
    """Return the environment of the job: it trains on the CPUs also where there are GPUs."""
    # The faults are on cores: on a GPU the host would run ahead of them.
    return {"OMP_NUM_THREADS": "1"} | os.environ | {"CUDA_VISIBLE_DEVICES": ""}


def build_command(plan: JobPlan, fault: Fault | None) -> list[str]:
    """Return the command that watches and trains."""
    import rootwalk.examples

    folder = Path(next(iter(rootwalk.examples.__path__))).resolve()
    script, *script_options = [TRAINING_SCRIPT] if fault is None else fault.script()
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--job", "demo"]
    command += ["--store", str(plan.store), "--json", str(plan.verdict)]
    if plan.profile_hz:
        # The stacks are what is asked for here: the budget must not take them away.
        command += ["--profile-hz", str(plan.profile_hz), "--budget-ratio", PROFILED_BUDGET]
    command.append("--")
    command += [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={plan.ranks}"]
    command += ["--master-port", str(_free_port()), str(folder / script), *script_options]
    command += ["--step-log", str(plan.step_logs), "--bind-cores"]
    return [*command, "--steps", str(plan.steps), "--workers", str(plan.workers)]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def count_steps(path: Path) -> int:
    """Return how many steps a rank's log has; 0 without the log."""
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def find_target(plan: JobPlan) -> Target:
    """Return the rank to disturb, from its own log and the script's choice of cores."""
    first, *_ = (plan.step_logs / f"rank{plan.fault_rank}.jsonl").read_text("utf-8").splitlines()
    cores = sorted(os.sched_getaffinity(0))
    return Target(plan.fault_rank, json.loads(first)["pid"], cores[plan.fault_rank % len(cores)])


def read_step_times(folder: Path, fault_step: int | None) -> StepTimes:
    """Return what the ranks' own step logs say: of each rank its own steps, and of all ranks the slowest.

    Ranks end a step together to within a few ms, now the one first, now the other: the longest of each step would add
    that up although the job never waits for it.

    Args:
        folder: Holds `rank<N>.jsonl`, a line a step with `step` and `seconds`.
        fault_step: Number of the step that ran when the fault began, or None; steps before and after it are there.
    """
    healthy, faulty = [], []
    for path in folder.glob("rank*.jsonl"):
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        end = math.inf if fault_step is None else fault_step
        healthy.append(
            statistics.median(e["seconds"] for e in entries if COLD_STEPS <= e["step"] < end)
        )
        if fault_step is not None:
            faulty.append(statistics.fmean(e["seconds"] for e in entries if e["step"] > fault_step))
    if fault_step is None:
        return StepTimes(max(healthy), None, None)
    return StepTimes(max(healthy), max(faulty), fault_step + 1)
