"""The agent between a real process with a ring and a real OTLP server on loopback."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.instrumentation.semconv import METRICS, SPANS
from support import workloads
from support.fake_ranks import STEPS, agent_of, drive, rank_process
from support.otlp_sink import OtlpSink, attributes, otlp_sink


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    with otlp_sink() as opened:
        yield opened


def test_steps_phases_and_tree_are_complete(sink: OtlpSink, tmp_path: Path) -> None:
    with agent_of(sink, tmp_path) as agent, rank_process(tmp_path) as process:
        drive(agent, process, tmp_path)
    spans = sink.spans()
    steps = [span for span in spans if span.name == "training.rank_step"]
    numbers = [attributes(span)["training.step.number"] for span in steps]
    assert numbers == list(range(STEPS))
    assert sum(span.name == "forward" for span in spans) == STEPS
    ids = {span.span_id for span in spans}
    assert all(span.parent_span_id in ids for span in spans if span.parent_span_id)
    roots = [span for span in spans if not span.parent_span_id]
    assert {span.name for span in roots} == {"training.step"}
    assert all(
        set(attributes(span)) <= SPANS[definition_of(span.name)].attributes for span in spans
    )
    assert sink.metric_names() <= METRICS.keys()
    assert "rootwalk.sensor.state" in sink.metric_names()


def test_readers_tell_of_the_host_and_of_the_rank(sink: OtlpSink, tmp_path: Path) -> None:
    with agent_of(sink, tmp_path, ["bpf"]) as agent, rank_process(tmp_path) as process:
        drive(agent, process, tmp_path)
    host = {name for name, labels in told(sink) if "training.rank" not in labels}
    rank = {name for name, labels in told(sink) if "training.rank" in labels}
    assert {"system.cpu.time", "system.cpu.logical.count"} <= host
    assert {"training.cpu.allowed", "process.thread.count"} <= rank
    kinds = told(sink).values()
    assert {"gauge", "counter", "updowncounter"} <= set(kinds)
    for (name, _), kind in told(sink).items():
        assert kind == METRICS[name].instrument, name


def told(sink: OtlpSink) -> dict[tuple[str, frozenset[str]], str]:
    """Instruments of metrics, by name and the names of their Resource's attributes."""
    found = {}
    for request in sink.metrics:
        for resource in request.resource_metrics:
            labels = frozenset(entry.key for entry in resource.resource.attributes)
            for metric in (one for scope in resource.scope_metrics for one in scope.metrics):
                kind = metric.WhichOneof("data")
                if kind == "sum":
                    kind = "counter" if metric.sum.is_monotonic else "updowncounter"
                found[metric.name, labels] = str(kind)
    return found


def definition_of(name: str) -> str:
    if name.startswith("stall."):
        return "stall"
    return name if name in SPANS else "training.phase"


@pytest.mark.bpf
@pytest.mark.slow
@pytest.mark.flaky(reruns=2)  # another process on that CPU would be named instead
def test_stall_names_the_hog_under_the_phase_that_it_delayed(
    sink: OtlpSink, tmp_path: Path
) -> None:
    with (
        agent_of(sink, tmp_path) as agent,
        workloads.python(workloads.burn(workloads.last_cpu())) as hog,
        rank_process(tmp_path, 40) as process,
    ):
        if agent.scheduler_name != "core":
            pytest.skip("bpf: the scheduler program cannot be loaded")
        drive(agent, process, tmp_path)
    spans = sink.spans()
    by_id = {span.span_id: span for span in spans}
    stalls = [
        attributes(s) | {"parent": s.parent_span_id} for s in spans if s.name == "stall.runnable"
    ]
    assert stalls
    hogged = [stall for stall in stalls if stall.get("training.aggressor.pid") == hog.pid]
    # Others may want this CPU too while the test runs; nobody wants it as much as the hog.
    aggressors = Counter(stall.get("training.aggressor.pid") for stall in stalls)
    assert aggressors.most_common(1)[0][0] == hog.pid
    assert {by_id[stall["parent"]].name for stall in hogged} & {"forward", "backward"}  # type: ignore[index]
    for span in spans:
        if span.name != "training.rank_step" or "training.thread.sensor" not in attributes(span):
            continue
        times = attributes(span)
        total = sum(
            float(str(times[f"training.thread.{name}_time"]))
            for name in ("running", "runnable", "blocked")
        )
        seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        assert total == pytest.approx(seconds, abs=1e-6)


def test_without_bpf_steps_still_have_times(sink: OtlpSink, tmp_path: Path) -> None:
    with agent_of(sink, tmp_path, ["bpf"]) as agent, rank_process(tmp_path) as process:
        assert agent.scheduler_name == "proc"
        drive(agent, process, tmp_path)
    steps = [attributes(span) for span in sink.spans() if span.name == "training.rank_step"]
    assert len(steps) == STEPS
    timed = [times for times in steps if times.get("training.thread.sensor") == "proc"]
    assert len(timed) >= STEPS // 2
    assert all("training.thread.runnable_foreign_time" not in times for times in timed)


def test_endpoint_that_is_away_loses_nothing(sink: OtlpSink, tmp_path: Path) -> None:
    sink.status = 503
    with agent_of(sink, tmp_path) as agent, rank_process(tmp_path) as process:
        workloads.wait_until(lambda: not agent.round() and process.poll() is not None)
        assert sink.traces == []
        sink.status = 200
        drive(agent, process, tmp_path)
    numbers = [
        attributes(span)["training.step.number"]
        for span in sink.spans()
        if span.name == "training.rank_step"
    ]
    assert numbers == list(range(STEPS))


def test_rank_that_dies_leaves_no_ring(sink: OtlpSink, tmp_path: Path) -> None:
    with agent_of(sink, tmp_path) as agent, rank_process(tmp_path, 3, dies=True) as process:
        drive(agent, process, tmp_path)
    numbers = {
        attributes(span)["training.step.number"]
        for span in sink.spans()
        if span.name == "training.rank_step"
    }
    assert {0, 1, 2} <= numbers


@pytest.mark.parametrize("finds_it_first", ["the scan for ranks", "a round without a scan"])
def test_the_end_of_a_rank_whose_ring_nobody_saw(
    sink: OtlpSink, tmp_path: Path, finds_it_first: str
) -> None:
    """A ring that lived for less than a round is sent and removed by its rank: only the process is seen to be gone."""
    environment = {**os.environ, "ROOTWALK_JOB": "fake", "RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, "-c", "input()"]
    with (
        agent_of(sink, tmp_path, ["bpf"]) as agent,
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as process,
    ):
        workloads.wait_until(
            lambda: agent.round() or agent._ranks.find(process.pid) is not None, 30.0
        )
        process.kill()
        process.wait()
        agent._next_scan_s = 0.0 if finds_it_first == "the scan for ranks" else math.inf
        agent.round()
    ends = [record for _, record in sink.events() if record.event_name == "training.process.end"]
    assert [attributes(record)["process.pid"] for record in ends] == [process.pid]


@pytest.mark.bpf
def test_what_is_done_to_a_rank_is_told_in_its_step(sink: OtlpSink, tmp_path: Path) -> None:
    with agent_of(sink, tmp_path) as agent, rank_process(tmp_path, 40) as process:
        if not any(s.sensor == "lifecycle" and s.reason is None for s in agent.sensors):
            pytest.skip("bpf: NO_BPF: nothing tells of signals here")

        def has_told_a_step() -> bool:
            agent.round()
            return any(span.name == "training.rank_step" for span in sink.spans())

        workloads.wait_until(has_told_a_step, 30.0)  # an emulated machine is slow
        os.kill(process.pid, signal.SIGSTOP)
        os.kill(process.pid, signal.SIGCONT)
        drive(agent, process, tmp_path)
    told = [
        (resource, record, attributes(record))
        for resource, record in sink.events()
        if record.event_name.startswith("training.process.")
    ]
    assert [values.get("training.signal.name") for _, _, values in told] == [
        "SIGSTOP",
        "SIGCONT",
        None,
    ]
    assert [record.severity_text for _, record, _ in told] == ["WARN", "INFO", "INFO"]
    assert {resource["training.rank"] for resource, _, _ in told} == {0}
    assert {values["process.pid"] for _, _, values in told} == {process.pid}
    assert told[0][2]["training.signal.sender.pid"] == os.getpid()
    assert told[2][2]["process.exit.code"] == 0
    # The span that the signal is part of is of the time at which it came.
    spans = {span.span_id: span for span in sink.spans()}
    for _, record, _ in told[:2]:
        span = spans[record.span_id]
        assert span.trace_id == record.trace_id
        assert span.start_time_unix_nano <= record.time_unix_nano <= span.end_time_unix_nano


def test_sigterm_sends_what_is_left_and_exits_0(sink: OtlpSink, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    code = (
        "import argparse, sys\nfrom rootwalk.graph.commands import agent\n"
        "parser = argparse.ArgumentParser()\nagent.add_arguments(parser)\n"
        "sys.exit(agent.run(parser.parse_args()))"
    )
    command = [sys.executable, "-c", code, "--endpoint", sink.endpoint, "--job", "nobody"]
    process = subprocess.Popen([*command, "--ready-file", str(ready)])
    try:
        workloads.wait_until(ready.exists)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
    assert "rootwalk.agent.cpu.time" in sink.metric_names()
