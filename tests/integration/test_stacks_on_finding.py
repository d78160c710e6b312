"""A finding starts the stacks of its rank and a peer: live detection's words to a real agent over its socket."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rootwalk.ebpf.agent import Agent, AgentConfig
from rootwalk.ebpf.control import ask_agents
from rootwalk.ebpf.targets import CORE
from rootwalk.graph.commands.finding_stacks import STACKS_FOR_S, FindingStacks
from rootwalk.graph.live.findings import LiveFinding
from rootwalk.graph.live.track import Change, Notice
from support import fake_rank, workloads
from support.bpf_programs import skip_without
from support.otlp_sink import OtlpSink, otlp_sink
from support.profile_rules import find_violations

pytestmark = [pytest.mark.bpf, pytest.mark.long, pytest.mark.alone]

FINDING = LiveFinding(
    *("fake", 0, "f", "PY_GC", "rank 2", None, "job code", "high", "high", 2, "h", 0.5, 10, 20),
    *(0, 0, 0, None, "text", "{}"),
)


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    skip_without(CORE)
    with otlp_sink() as opened:
        yield opened


def test_a_finding_starts_them_for_its_rank_and_a_peer(sink: OtlpSink, tmp_path: Path) -> None:
    """Three real ranks, a real agent asked over its socket, as live detection does it; another job is left alone."""
    command = [sys.executable, fake_rank.__file__, str(tmp_path), "300", str(workloads.last_cpu())]
    common = {**os.environ, "ROOTWALK_JOB": "fake", "WORLD_SIZE": "3"}
    config = AgentConfig(sink.endpoint, job="fake", budget_ratio=None, ring_directories=[tmp_path])
    agent = Agent(config)
    thread = threading.Thread(target=agent.run)
    with contextlib.ExitStack() as ranks:
        for rank in range(3):
            process = subprocess.Popen(command, env={**common, "RANK": str(rank)})
            ranks.callback(process.wait)
            ranks.callback(process.kill)
        thread.start()
        ranks.callback(thread.join)
        ranks.callback(agent.stop)

        def ask(request: dict[str, Any]) -> list[dict[str, Any]]:
            return ask_agents(request, [tmp_path])

        def told() -> list[dict[str, Any]]:
            return [one for answer in ask({}) for one in answer.get("ranks", [])]

        workloads.wait_until(lambda: len(told()) == 3, 60.0)
        said = [
            FindingStacks(99, ask).take(Notice(Change.OPENED, replace(FINDING, job=job, rank=2)))
            for job in ("another", "fake")
        ]
        assert "saw no agent on this host" in str(said[0])
        assert "taking stacks of rank 2 and its peer 1 for 30 s" in str(said[1])
        in_force = {one["rank"]: (one["profile_hz"], one["for_s"]) for one in told()}
        assert {rank: hz for rank, (hz, _) in in_force.items()} == {0: 0, 1: 99, 2: 99}
        assert all(0.0 < in_force[rank][1] <= STACKS_FOR_S for rank in (1, 2))
        workloads.wait_until(lambda: len(_profiled(sink)) >= 2, 60.0)
    assert _profiled(sink) == {1, 2}
    assert [find_violations(request) for request in sink.profiles] == [[]] * len(sink.profiles)


def _profiled(sink: OtlpSink) -> set[int]:
    """Return the ranks whose stacks have come."""
    return {
        pair.value.int_value
        for request in sink.profiles
        for group in request.resource_profiles
        for pair in group.resource.attributes
        if pair.key == "training.rank"
    }
