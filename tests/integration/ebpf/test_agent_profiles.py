"""The agent with profiles on, between a real process with a ring and a real OTLP server on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rootwalk.ebpf.agent import Agent, AgentConfig
from rootwalk.ebpf.targets import CORE
from support import fake_rank, workloads
from support.bpf_programs import skip_without
from support.otlp_sink import OtlpSink, otlp_sink
from support.profile_rules import find_violations, list_profiles

pytestmark = [pytest.mark.bpf, pytest.mark.long]

STEPS = 40
COMPUTE, LOAD, WAIT = "_compute", "main", "_wait_for_others"


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    skip_without(CORE)
    with otlp_sink() as opened:
        yield opened


def run_agent(
    sink: OtlpSink, folder: Path, hz: int, meanwhile: Callable[[Agent], None] = lambda _: None
) -> dict[str, int]:
    """Follow a rank to its end; return what the agent lost of its stacks."""
    environment = {**os.environ, "ROOTWALK_JOB": "fake", "RANK": "0", "WORLD_SIZE": "1"}
    environment["FAKE_RANK_WAITS"] = "1"
    command = [
        sys.executable,
        fake_rank.__file__,
        str(folder),
        str(STEPS),
        str(workloads.last_cpu()),
    ]
    config = AgentConfig(
        sink.endpoint, job="fake", profile_hz=hz, budget_ratio=None, ring_directories=[folder]
    )
    agent = Agent(config)
    try:
        with subprocess.Popen(command, env=environment) as process:

            def is_over() -> bool:
                agent.round()
                meanwhile(agent)
                return process.poll() is not None and not list(folder.glob("*.ring"))

            workloads.wait_until(is_over, 60.0)
        return {name: n for name, n in agent._dropped().items() if n and "stack" in name}
    finally:
        agent.close()


def flatten(request: Any) -> Iterator[tuple[str, dict[str, str], tuple[str, ...], bytes, int]]:
    """Yield kind, attributes, functions, span id and value of every sample."""
    tables = request.dictionary
    words = tables.string_table
    for _, profile in list_profiles(request):
        kind = words[profile.sample_type.type_strindex]
        for sample in profile.samples:
            found = [tables.attribute_table[n] for n in sample.attribute_indices]
            labels = {words[one.key_strindex]: one.value.string_value for one in found}
            places = tables.stack_table[sample.stack_index].location_indices
            lines = [line for n in places for line in tables.location_table[n].lines]
            names = tuple(
                words[tables.function_table[one.function_index].name_strindex] for one in lines
            )
            span_id = tables.link_table[sample.link_index].span_id
            yield kind, labels, names, span_id, sample.values[0]


def test_stacks_come_with_their_phase_and_the_span_of_it(sink: OtlpSink, tmp_path: Path) -> None:
    losses = run_agent(sink, tmp_path, 99)
    assert losses == {}
    assert sink.profiles
    assert [find_violations(request) for request in sink.profiles] == [[]] * len(sink.profiles)
    samples = [one for request in sink.profiles for one in flatten(request)]
    main = [one for one in samples if one[1]["training.thread.role"] == "main"]
    computed = [one for one in main if one[0] == "samples" and COMPUTE in one[2]]
    phases: Counter[str] = Counter()
    for _, labels, _, _, value in computed:
        phases[labels.get("training.phase", "none")] += value
    right = phases["forward"] + phases["backward"]
    assert right >= 0.9 * sum(phases.values()) > 50
    names = {span.span_id: span.name for span in sink.spans()}
    linked = Counter[str]()
    for _, labels, _, span_id, value in computed:
        if "training.phase" in labels:
            linked[labels["training.phase"] + ":" + names.get(span_id, "none")] += value
    right = linked["forward:forward"] + linked["backward:backward"]
    assert right >= 0.97 * sum(linked.values())
    assert all(phase == span for phase, _, span in (one.partition(":") for one in linked))
    asleep_ns = Counter[bytes]()
    for kind, labels, functions, span_id, value in main:
        if kind == "off_cpu" and labels.get("training.phase") == "data_load" and LOAD in functions:
            asleep_ns[span_id] += value
    load_ns = fake_rank.LOAD_S * 1e9
    exact = [one for one in asleep_ns.values() if 0.95 < one / load_ns < 1.05]
    # On a busy machine the agent comes late; what it then sees is right.
    assert len(exact) >= 0.9 * len(asleep_ns) >= 5
    in_collectives, named_ns = Counter[bytes](), 0
    for kind, labels, functions, span_id, value in samples:
        if kind == "collective_wait":
            assert labels["collective.operation"] == "all_reduce"
            assert labels["training.phase"] == names[span_id] == "backward"
            in_collectives[span_id] += value
            # The first waits are told before it is known where the interpreter lies.
            named_ns += value * (WAIT in functions)
    assert named_ns >= 0.8 * in_collectives.total()
    wait_ns = fake_rank.WAIT_S * 1e9
    exact = [one for one in in_collectives.values() if 0.95 < one / wait_ns < 1.05]
    assert len(exact) >= 0.9 * len(in_collectives) >= 5


def test_stacks_that_are_asked_for_come_for_that_time_only(sink: OtlpSink, tmp_path: Path) -> None:
    asked: list[float] = []

    def ask(agent: Agent) -> None:
        if not asked and len(sink.spans()) > 20:
            asked.append(time.monotonic())
            request = {"level": 2, "ranks": [0], "for_s": 2.0, "profile_hz": 99}
            answer = agent._detail._answer(request, list(agent._ranks))
            assert [one["profile_hz"] for one in answer["ranks"]] == [99]

    run_agent(sink, tmp_path, 0, ask)
    assert asked
    assert [find_violations(request) for request in sink.profiles] == [[]] * len(sink.profiles)
    times = [
        (profile.time_unix_nano, profile.duration_nano)
        for request in sink.profiles
        for _, profile in list_profiles(request)
    ]
    assert times
    # Opened and closed at a round, of which two come in a second.
    span_s = (max(begin + long for begin, long in times) - min(begin for begin, _ in times)) / 1e9
    assert 1.0 < span_s < 5.0


def test_without_a_rate_no_stack_is_taken(sink: OtlpSink, tmp_path: Path) -> None:
    assert run_agent(sink, tmp_path, 0) == {}
    assert sink.profiles == []


def test_without_a_rate_nothing_of_it_is_loaded() -> None:
    code = (
        "import sys, rootwalk.ebpf.agent\n"
        "names = [n for n in sys.modules if n.startswith('rootwalk.ebpf.stacks') or n == 'numpy']\n"
        "assert names == [], names\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
