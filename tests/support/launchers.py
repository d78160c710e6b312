"""Ways in which people start two ranks. Each gives a command line around `tiny_training.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
SCRIPT = str(HERE / "tiny_training.py")
START_RANKS = str(HERE / "start_ranks.py")
BASH = """\
RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 "$@" & first=$!
RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 "$@" & second=$!
wait $first; code=$?
wait $second || code=$?
exit $code
"""
EXECUTES = """\
import os, sys
{first}
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
CUSTOMISATION = str(HERE / "customisation")


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line to run.

    Attributes:
        command: The command.
        environment: Variables beside the present ones.
        attempt: Number of the attempt that is to be diagnosed when nothing goes wrong.
    """

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    attempt: int = 0


def torchrun(training: list[str], _folder: Path, *, restarts: int = 0) -> Launch:
    """PyTorch's own, on a port of its own; its ranks restart together."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--master-port=0"]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.1"]
    return Launch([*command, *training])


def elastic(training: list[str], folder: Path) -> Launch:
    """Torchrun after a failure: rank 1 fails in its first attempt, and the job starts again."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "crash.0").touch()
    launch = torchrun(training, folder, restarts=1)
    return Launch(launch.command, launch.environment, attempt=1)


def shell(training: list[str], _folder: Path) -> Launch:
    """A script that starts plain Python in the background, with RANK set, and waits."""
    return Launch(["bash", "-c", BASH, "start", sys.executable, *training])


def openmpi(training: list[str], _folder: Path) -> Launch:
    return Launch([sys.executable, START_RANKS, "openmpi", sys.executable, *training])


def slurm(training: list[str], _folder: Path) -> Launch:
    command = [sys.executable, START_RANKS, "slurm", sys.executable, *training]
    return Launch(command, {"SLURM_JOB_ID": "4242"})


def opentelemetry(training: list[str], _folder: Path) -> Launch:
    """Every rank under OpenTelemetry's own command, which loads the hooks a second time."""
    instrument = str(Path(sys.executable).parent / "opentelemetry-instrument")
    environment = {
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }
    return Launch(["bash", "-c", BASH, "start", instrument, sys.executable, *training], environment)


def customised(training: list[str], folder: Path) -> Launch:
    """An environment with a `sitecustomize` of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    launch = shell(training, folder)
    return Launch(
        launch.command,
        {"PYTHONPATH": CUSTOMISATION, "TINY_CUSTOMISED": str(folder / "customised")},
    )


def exec_before_torch(training: list[str], _folder: Path) -> Launch:
    executes = ["-c", EXECUTES.format(first=""), *training]
    return Launch(["bash", "-c", BASH, "start", sys.executable, *executes])


def exec_after_torch(training: list[str], _folder: Path) -> Launch:
    executes = ["-c", EXECUTES.format(first="import torch, torch.distributed"), *training]
    return Launch(["bash", "-c", BASH, "start", sys.executable, *executes])


def spawn(training: list[str], _folder: Path) -> Launch:
    return Launch([sys.executable, *training, "--spawn", "spawn"])


def fork(training: list[str], _folder: Path) -> Launch:
    return Launch([sys.executable, *training, "--spawn", "fork"])


LAUNCHERS: dict[str, Callable[[list[str], Path], Launch]] = {
    "torchrun": torchrun,
    "elastic": elastic,
    "shell": shell,
    "openmpi": openmpi,
    "slurm": slurm,
    "opentelemetry": opentelemetry,
    "sitecustomize": customised,
    "exec_before": exec_before_torch,
    "exec_after": exec_after_torch,
    "spawn": spawn,
    "fork": fork,
}
