"""A process with a ring beside an agent that is turned by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rootwalk.ebpf.agent import Agent, AgentConfig
from support import fake_rank, workloads
from support.otlp_sink import OtlpSink

__all__ = ["STEPS", "agent_of", "drive", "rank_process"]

STEPS = 12


@contextmanager
def rank_process(
    folder: Path, steps: int = STEPS, *before: str, dies: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a rank of so many steps, by a command that may have words before it."""
    environment = {
        **os.environ,
        "ROOTWALK_JOB": "fake",
        "RANK": "0",
        "WORLD_SIZE": "1",
        **({"FAKE_RANK_DIES": "1"} if dies else {}),
    }
    command = [*before, sys.executable, fake_rank.__file__, str(folder), str(steps)]
    process = subprocess.Popen([*command, str(workloads.last_cpu())], env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def agent_of(
    sink: OtlpSink,
    folder: Path,
    without: Sequence[str] = (),
    *,
    job: str = "fake",
    parent_pid: int | None = None,
) -> Iterator[Agent]:
    """Open an agent whose rounds the caller turns."""
    config = AgentConfig(
        sink.endpoint,
        job=job,
        without=without,
        parent_pid=parent_pid,
        ring_directories=[folder],
    )
    agent = Agent(config)
    try:
        yield agent
    finally:
        agent.close()


def drive(agent: Agent, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Run rounds until the process is gone and its ring with it."""

    def is_over() -> bool:
        agent.round()
        return process.poll() is not None and not list(folder.glob("*.ring"))

    workloads.wait_until(is_over, 30.0)
