"""Who is this process: job, attempt, rank, from the launcher's environment. Standard library only.

Launchers: torchrun, Slurm, Open MPI, PMI (MPICH, Intel MPI); Kubernetes and Ray by the job id. Nothing but the names
below is ever read from the environment.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rootwalk.instrumentation import semconv

__all__ = ["Identity", "is_rank", "own_start_ticks", "read_host_id", "read_identity"]

JOB_VARIABLES = (
    "ROOTWALK_JOB",
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "RAY_JOB_ID",
    "KUBEFLOW_TRAINING_JOB_ID",
)
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_RANK_VARIABLES = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
)
ATTEMPT_VARIABLES = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


@dataclass(frozen=True, slots=True)
class Identity:
    """One rank of one launch of a job.

    Attributes:
        job: Job id; equal on all ranks.
        attempt: Restarts by the launcher, and by the program's own exec, from 0.
        rank: Global rank.
        local_rank: Rank within the host.
        world_size: Number of ranks.
        pid: Process id in its own pid namespace.
        host_id: Stable id of the machine.
        host_name: Its name, for people.
        service_name: `service.name` of the rank's telemetry.
        release: Versions that it runs, for people; empty where nothing tells.
    """

    job: str
    attempt: int
    rank: int
    local_rank: int
    world_size: int
    pid: int
    host_id: str
    host_name: str
    service_name: str
    release: str = ""

    def resource_attributes(self) -> dict[str, str | int]:
        """Return the OTLP Resource of this rank's telemetry."""
        release = {semconv.TRAINING_RELEASE: self.release} if self.release else {}
        return {
            **release,
            semconv.SERVICE_NAME: self.service_name,
            semconv.TRAINING_JOB_ID: self.job,
            semconv.TRAINING_JOB_ATTEMPT: self.attempt,
            semconv.TRAINING_RANK: self.rank,
            semconv.TRAINING_LOCAL_RANK: self.local_rank,
            semconv.TRAINING_WORLD_SIZE: self.world_size,
            semconv.HOST_ID: self.host_id,
            semconv.HOST_NAME: self.host_name,
            semconv.PROCESS_PID: self.pid,
        }


def _first_int(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = environment.get(name, "")
        if value.isascii() and value.isdigit():
            return int(value)
    return None


def _job(environment: Mapping[str, str]) -> str:
    for name in JOB_VARIABLES:
        value = environment.get(name, "").strip()
        if value and value != "none":  # torchrun's default run id is the word "none"
            return value[:200]
    address = environment.get("MASTER_ADDR", "local")
    port = environment.get("MASTER_PORT", str(os.getppid()))
    return "job-" + hashlib.sha256(f"{address}:{port}".encode()).hexdigest()[:10]


def _told(environment: Mapping[str, str], attribute: str) -> str:
    """Return an attribute of OTEL_RESOURCE_ATTRIBUTES; empty where it is not told."""
    for pair in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        key, _, value = pair.partition("=")
        if key.strip() == attribute and value.strip():
            return value.strip()
    return ""


def read_release(environment: Mapping[str, str]) -> str:
    """Return the versions that this process runs: of PyTorch as it is imported, and of the service as it is told."""
    torch = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    parts = (
        ("torch", getattr(torch, "__version__", None)),
        ("CUDA", getattr(version, "cuda", None)),
        ("service", _told(environment, semconv.SERVICE_VERSION)),
    )
    return ", ".join(f"{name} {str(value)[:60]}" for name, value in parts if value)


def read_host_id() -> str:
    """Return an id of this machine: `host.id` of OTEL_RESOURCE_ATTRIBUTES, the hashed machine id, or its name."""
    if told := _told(os.environ, semconv.HOST_ID):
        return told
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            machine_id = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if machine_id:
            # Containers and UTS namespaces share the file: the name keeps two of them apart.
            seed = f"rootwalk|{machine_id}|{socket.gethostname()}"
            return hashlib.sha256(seed.encode()).hexdigest()[:32]
    return socket.gethostname()


def own_start_ticks() -> int:
    """Return when this process started, clock ticks since boot; 0 where /proc does not tell.

    Source:
        Field 22 of /proc/self/stat, proc(5); the command name before it may hold spaces and brackets.
    """
    try:
        return int(
            Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
        )
    except (OSError, ValueError, IndexError):
        return 0


def is_rank(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher has told this process its rank."""
    return _first_int(environment, RANK_VARIABLES) is not None


def read_identity(
    environment: Mapping[str, str],
    *,
    rank: int | None = None,
    world_size: int | None = None,
) -> Identity:
    """Return this process's identity.

    Args:
        environment: The process's environment.
        rank: Global rank as the process group knows it; overrides the environment.
        world_size: Number of ranks as the process group knows it; overrides the environment.
    """
    if rank is None:
        rank = _first_int(environment, RANK_VARIABLES) or 0
    if world_size is None:
        world_size = max(_first_int(environment, WORLD_SIZE_VARIABLES) or 1, rank + 1)
    local_rank = _first_int(environment, LOCAL_RANK_VARIABLES)
    return Identity(
        job=_job(environment),
        attempt=_first_int(environment, ATTEMPT_VARIABLES) or 0,
        rank=rank,
        local_rank=rank if local_rank is None else local_rank,
        world_size=world_size,
        pid=os.getpid(),
        host_id=read_host_id(),
        host_name=socket.gethostname(),
        service_name=environment.get("OTEL_SERVICE_NAME", "") or "rootwalk",
        release=read_release(environment),
    )
