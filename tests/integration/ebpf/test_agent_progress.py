"""An agent beside real ranks of PyTorch that stop making progress: what it tells of them, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rootwalk.instrumentation
from rootwalk.ebpf.agent import Agent, AgentConfig
from support import workloads
from support.otlp_sink import OtlpSink, attributes, otlp_sink

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.slow]

BOOTSTRAP = Path(next(iter(rootwalk.instrumentation.__path__))) / "bootstrap"
LAST = 8
# Rank 1 sleeps after a step; each rank writes PyTorch's own count of its collectives after each step.
SLEEPS = f"""
import json, os, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), sys.argv[1]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
group = dist.group.WORLD
for step in range({LAST} + 5):
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    open(folder + f"/{{rank}}.{{step}}", "w").write(str(group._get_sequence_number_for_group()))
    if rank == 1 and step == {LAST}:
        while not os.path.exists(folder + "/go"):
            time.sleep(0.1)
        if os.path.exists(folder + "/fail"):
            raise KeyError("text of an exception")
dist.destroy_process_group()
"""
# Rank 1 comes late to the process group.
LATE = """
import os, sys, time, torch, torch.distributed as dist
if os.environ["RANK"] == "1":
    while not os.path.exists(sys.argv[1] + "/go"):
        time.sleep(0.5)
dist.init_process_group("gloo")
dist.destroy_process_group()
"""
PROGRESS, COLLECTIVE = "training.rank.progress", "training.collective.progress"
END, EXCEPTION = "training.process.end", "training.process.exception"


class Job:
    """Two ranks under torchrun, and the agent whose rounds the test turns."""

    def __init__(self, folder: Path, sink: OtlpSink, agent: Agent) -> None:
        self.folder, self.sink, self.agent = folder, sink, agent

    def turn_until(self, is_there: Callable[[], bool], timeout_s: float = 90.0) -> None:
        """Turn rounds, twice a second as the agent does, until something is there."""

        def turn() -> bool:
            self.agent.round()
            time.sleep(0.45)
            return is_there()

        workloads.wait_until(turn, timeout_s)

    def told(self, name: str, rank: int) -> list[dict[str, Any]]:
        """Return the attributes of a rank's events of a name."""
        return [
            attributes(record)
            for resource, record in self.sink.events()
            if record.event_name == name and resource["training.rank"] == rank
        ]

    def is_idle(self) -> bool:
        return all(self.told(PROGRESS, rank) for rank in (0, 1))


@contextmanager
def job(
    folder: Path,
    sink: OtlpSink,
    code: str,
    *without: str,
    environment: dict[str, str] | None = None,
) -> Iterator[Job]:
    script, rings = folder / "script.py", folder / "rings"
    script.write_text(code)
    base = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "ROOTWALK_"))}
    own = {
        "PYTHONPATH": str(BOOTSTRAP),
        "ROOTWALK_JOB": "idle",
        "ROOTWALK_RING_DIRECTORY": str(rings),
        "ROOTWALK_ENDPOINT": sink.endpoint,
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--master-port=0"]
    command += ["--monitor-interval=0.1", str(script), str(folder)]
    agent = Agent(AgentConfig(sink.endpoint, job="idle", without=without, ring_directories=[rings]))
    process = subprocess.Popen(command, env={**base, **own, **(environment or {})})
    try:
        yield Job(folder, sink, agent)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        agent.close()


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    with otlp_sink() as opened:
        yield opened


def test_a_rank_that_sleeps_and_one_that_waits_for_it(sink: OtlpSink, tmp_path: Path) -> None:
    with job(tmp_path, sink, SLEEPS, "bpf") as running:
        running.turn_until(running.is_idle)
        last = int((tmp_path / f"1.{LAST}").read_text())
        waiting, sleeping = (running.told(PROGRESS, rank)[0] for rank in (0, 1))
        ahead, behind = (running.told(COLLECTIVE, rank)[0] for rank in (0, 1))
        (tmp_path / "go").touch()
        running.turn_until(lambda: all(running.told(END, rank) for rank in (0, 1)))
        over = [running.told(PROGRESS, rank)[-1] for rank in (0, 1)]
        ends = [running.told(END, rank) for rank in (0, 1)]
    assert waiting["training.progress.idle_time"] >= 5.0
    assert (waiting["training.step.number"], waiting["training.phase"]) == (LAST + 1, "backward")
    assert sleeping["training.step.number"] == LAST
    assert "training.phase" not in sleeping
    for one in (waiting, sleeping):
        assert one["training.progress.stage"] == "training"
        assert one["training.process.state"] == "sleeping"
        assert one["training.progress.usual_time"] > 0
        assert one["training.progress.cpu_time"] < one["training.progress.idle_time"]
    assert sleeping["training.progress.wakeups"] > 10 > waiting["training.progress.wakeups"]
    assert (ahead["collective.sequence"], ahead["collective.ended_sequence"]) == (last + 1, last)
    assert (behind["collective.sequence"], behind["collective.ended_sequence"]) == (last, last)
    assert ahead["collective.pending_time"] >= 5.0
    assert "collective.pending_time" not in behind
    assert ahead["collective.operation"] == "all_reduce"
    assert ahead["collective.communicator.ranks"] == [0, 1]
    assert ahead["collective.communicator.id"] == behind["collective.communicator.id"]
    assert [one["training.progress.idle_time"] for one in over] == [0.0, 0.0]
    assert [one["training.process.ran_exit_handlers"] for (one,) in ends] == [True, True]


def test_the_rank_that_fails_is_told_with_type_and_place(sink: OtlpSink, tmp_path: Path) -> None:
    with job(tmp_path, sink, SLEEPS, "bpf") as running:
        running.turn_until((tmp_path / f"1.{LAST}").exists)
        for name in ("fail", "go"):
            (tmp_path / name).touch()
        running.turn_until(lambda: bool(running.told(EXCEPTION, 1) and running.told(END, 1)))
    (failed,) = running.told(EXCEPTION, 1)
    assert failed["exception.type"] == "KeyError"
    place = SLEEPS.splitlines().index('            raise KeyError("text of an exception")') + 1
    assert failed["training.stack.frames"] == [f"<module> (script.py:{place})"]
    assert b"text of an exception" not in b"".join(one.SerializeToString() for one in sink.logs)


def test_a_rank_that_is_not_in_the_process_group(sink: OtlpSink, tmp_path: Path) -> None:
    with job(tmp_path, sink, LATE, "bpf") as running:
        running.turn_until(lambda: bool(running.told(PROGRESS, 0)))
        (waiting,) = running.told(PROGRESS, 0)
        (tmp_path / "go").touch()
        running.turn_until(lambda: all(running.told(END, rank) for rank in (0, 1)))
    assert waiting["training.progress.stage"] == "rendezvous"
    assert "training.step.number" not in waiting
    assert running.told(COLLECTIVE, 0) == []


def test_ranks_without_hooks_are_watched_by_their_threads(sink: OtlpSink, tmp_path: Path) -> None:
    sleeps = SLEEPS.replace("time.sleep(0.1)", "time.sleep(60)")
    environment = {"ROOTWALK_DISABLED": "1"}
    with job(tmp_path, sink, sleeps, "bpf", environment=environment) as running:
        running.turn_until(running.is_idle)
    for one in (running.told(PROGRESS, rank)[0] for rank in (0, 1)):
        assert one["training.progress.idle_time"] >= 5.0
        assert one["training.process.state"] == "sleeping"
        assert "training.progress.stage" not in one
