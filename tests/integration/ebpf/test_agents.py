"""Several agents, groups and hosts on one kernel, with a rank that is a real process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rootwalk.ebpf.agent import Agent
from rootwalk.ebpf.ring_files import STALE_NS
from rootwalk.graph.commands.cpu_limit import CpuLimit, find_group_tree
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.shared_ring import RingWriter
from support import workloads
from support.fake_ranks import agent_of, rank_process
from support.otlp_sink import OtlpSink, attributes, otlp_sink
from support.rings import identity

STEPS = 60
NOBODY = 2**22 + 1  # above the largest process id that Linux gives


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    with otlp_sink() as opened:
        yield opened


def is_over(process: subprocess.Popen[bytes], folder: Path, *agents: Agent) -> bool:
    for agent in agents:
        agent.round()
    return process.poll() is not None and not list(folder.glob("*.ring"))


def has_ring(folder: Path) -> bool:
    return bool(list(folder.glob("*.ring")))


def ranks_with_metrics(sink: OtlpSink) -> Counter[str]:
    """Return in how many Resources each metric of a rank came, the rounds of one agent counted once."""
    found: Counter[str] = Counter()
    for request in sink.metrics:
        for resource in request.resource_metrics:
            is_rank = any(a.key == "training.rank" for a in resource.resource.attributes)
            names = {m.name for scope in resource.scope_metrics for m in scope.metrics}
            found.update(names if is_rank else ())
    return found


@pytest.mark.long
def test_two_agents_tell_a_rank_once(tmp_path: Path) -> None:
    with (
        otlp_sink() as first_sink,
        otlp_sink() as second_sink,
        agent_of(first_sink, tmp_path) as first,
        agent_of(second_sink, tmp_path) as second,
        rank_process(tmp_path, STEPS) as process,
    ):
        workloads.wait_until(lambda: is_over(process, tmp_path, first, second), 60.0)
        first.close()
        second.close()
        spans = [span.span_id for sink in (first_sink, second_sink) for span in sink.spans()]
        senders = [sink for sink in (first_sink, second_sink) if ranks_with_metrics(sink)]
    assert len(spans) > 3 * STEPS
    assert max(Counter(spans).values()) == 1
    assert len(senders) == 1


@pytest.mark.long
def test_agent_that_is_killed_leaves_its_ranks_to_the_next(sink: OtlpSink, tmp_path: Path) -> None:
    with rank_process(tmp_path, STEPS) as process:
        workloads.wait_until(lambda: has_ring(tmp_path))
        with agent_of(sink, tmp_path) as first:
            first.round()
        with agent_of(sink, tmp_path) as second:
            workloads.wait_until(lambda: is_over(process, tmp_path, second), 60.0)
    numbers = [
        attributes(span)["training.step.number"]
        for span in sink.spans()
        if span.name == "training.rank_step"
    ]
    assert sorted(numbers, key=str) == sorted(range(STEPS), key=str)


def require_uts() -> None:
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces: needs root")


def test_agent_of_a_run_leaves_another_hosts_ranks_alone(sink: OtlpSink, tmp_path: Path) -> None:
    # A rank of the same job that is on another "host", and does not descend from the run of this one.
    require_uts()
    with (
        agent_of(sink, tmp_path, parent_pid=NOBODY) as agent,
        rank_process(tmp_path, STEPS, "unshare", "--uts"),
    ):
        workloads.wait_until(lambda: has_ring(tmp_path))
        for _ in range(3):
            agent.round()
            time.sleep(0.1)
        agent.close()
    assert sink.spans() == []
    assert not ranks_with_metrics(sink)


@pytest.mark.parametrize("parent_pid", [None, os.getpid()], ids=["whole machine", "own run"])
def test_rank_in_a_container_is_followed(
    sink: OtlpSink, tmp_path: Path, parent_pid: int | None
) -> None:
    require_uts()
    with (
        agent_of(sink, tmp_path, parent_pid=parent_pid) as agent,
        rank_process(tmp_path, STEPS, "unshare", "--uts"),
    ):

        def has_step() -> bool:
            agent.round()
            return any(span.name == "training.rank_step" for span in sink.spans())

        workloads.wait_until(has_step)


def test_agent_inside_a_host_made_of_namespaces_sees_that_host_only(
    sink: OtlpSink, tmp_path: Path
) -> None:
    require_uts()
    ready = tmp_path / "ready.json"
    code = (
        "import argparse, sys\nfrom rootwalk.graph.commands import agent\n"
        "parser = argparse.ArgumentParser()\nagent.add_arguments(parser)\n"
        "sys.exit(agent.run(parser.parse_args()))"
    )
    inside = ["unshare", "--uts", sys.executable, "-c", code, "--endpoint", sink.endpoint]
    process = subprocess.Popen(
        [*inside, "--job", "fake", "--ready-file", str(ready)],
        env={**os.environ, "ROOTWALK_RING_DIRECTORY": str(tmp_path)},
    )
    try:
        # Of a rank that has ended its host's name is left to tell, which is the same on both.
        workloads.wait_until(ready.exists)
        with rank_process(tmp_path, STEPS):
            workloads.wait_until(lambda: has_ring(tmp_path))
            time.sleep(1.5)
            process.terminate()
            assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()
    assert sink.spans() == []
    assert not ranks_with_metrics(sink)
    assert "rootwalk.agent.cpu.time" in sink.metric_names()


@pytest.mark.flaky(reruns=2)  # a machine that is busy enough leaves nothing to be throttled
def test_rank_that_is_moved_into_a_limited_group(sink: OtlpSink, tmp_path: Path) -> None:
    try:
        limit = CpuLimit.create(find_group_tree(), 0.1)
    except UnavailableError as error:
        pytest.skip(f"cgroup: {error.reason}")
    try:
        with agent_of(sink, tmp_path) as agent, rank_process(tmp_path, STEPS) as process:
            if agent.scheduler_name == "nothing":
                pytest.skip("bpf: the scheduler program cannot be loaded")
            begin_s = time.monotonic()

            def round_until(seconds: float) -> bool:
                agent.round()
                time.sleep(0.2)
                return time.monotonic() - begin_s > seconds

            workloads.wait_until(lambda: round_until(1.5), 30.0)
            limit.add_tree(process.pid)
            workloads.wait_until(lambda: round_until(5.0), 30.0)
            agent.close()
    finally:
        limit.remove()
    steps = [attributes(span) for span in sink.spans() if span.name == "training.rank_step"]
    seconds = [step.get("training.cgroup.throttled_time") for step in steps]
    known = [float(str(value)) for value in seconds if value is not None]
    assert known[0] == 0.0
    assert max(known) > 0.1
    names = ranks_with_metrics(sink)
    assert names["training.cgroup.cpu.limit"] > 0
    assert names["training.cgroup.cpu.throttled.time"] > 0


def test_rings_that_a_killed_node_left_go_when_an_agent_starts(
    sink: OtlpSink, tmp_path: Path
) -> None:
    old = RingWriter(replace(identity(), job="other", pid=NOBODY), tmp_path).path
    young = RingWriter(replace(identity(), job="other", pid=NOBODY + 1), tmp_path).path
    os.utime(old, ns=(0, time.time_ns() - 2 * STALE_NS))
    with agent_of(sink, tmp_path):
        assert not old.exists()
        assert young.exists()
