"""From the driver's library to the verdict: the agent reads GPUs that a stand-in plays, beside a made-up job.

agent, real         nvidia-ml-py -> stand-in of libnvidia-ml.so.1 -> OTLP, 75 s; ranks are processes that sleep
job, made up        two ranks, of which the second waits 60 ms a step longer for its GPU from 24 s on, or does not
ranks by GPU        0 and 1 of the first case, 2 and 3 of the second, ...: the odd ones have what the case names

No GPU is there, and nothing is slow because of one: what is shown is that what NVML says arrives and is weighed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from rootwalk.ebpf.sensors import SENSOR_NAMES
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.instrumentation import semconv
from support.counter_cases import FAULT_S, ONSET, STEPS
from support.job_requests import JobRequests
from support.jobs import HEALTHY_STEP_S, NS, Fault, Job
from support.nvml_standin import GIB, Scenario, has_compiler, uuid_of
from support.otlp_sink import OtlpSink, otlp_sink
from support.receiver_process import running_receiver
from support.verdicts import check_verdict

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not has_compiler(), reason="needs a C compiler"),
]

# Another run of these tests beside this one has ranks of its own.
JOB = f"nvml-stand-in-{os.getpid()}"
# The agent is given time to meet the ranks before the first step.
BEGIN_S = 12.0
ONSET_S = BEGIN_S + ONSET * HEALTHY_STEP_S
END_S = ONSET_S + (STEPS - ONSET) * (HEALTHY_STEP_S + FAULT_S)
STRANGER = 1
Plays = Callable[[Scenario, int], object]


def slow_clock(scenario: Scenario, gpu: int) -> Scenario:
    return scenario.add(gpu, "set", "clock.1", 1320, ONSET_S)


# What NVML says of the odd GPUs: time that the driver adds up is ns, all of the time.
PLAYS: dict[str, Plays] = {
    "GPU_THERMAL": lambda s, gpu: slow_clock(s, gpu).add(gpu, "rate", "violation.1", 1e9, ONSET_S),
    "GPU_POWER": lambda s, gpu: slow_clock(s, gpu).add(gpu, "rate", "violation.0", 1e9, ONSET_S),
    "GPU_CLOCK_PIN": lambda s, gpu: slow_clock(s, gpu).add(gpu, "set", "reasons", 0x2, ONSET_S),
    "GPU_COTENANT": lambda s, gpu: s.add(gpu, "process", STRANGER, GIB, ONSET_S),
    "PCIE_DEGRADED": lambda s, gpu: s.add(gpu, "set", "pcie_generation", 1, ONSET_S),
    "GPU_ECC": lambda s, gpu: s.add(gpu, "rate", "ecc_volatile.0", 200.0, ONSET_S),
    # Nothing but the clock, which stands still.
    "GPU_SILENT_SLOW": lambda s, gpu: s,
}
CASES = tuple(PLAYS)


@dataclass
class Played:
    """What came of the agent's run."""

    begin_unix_ns: int = 0
    requests: list[ExportMetricsServiceRequest] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Runs the agent once, and stores what it said beside a slow and a healthy job of every case."""
    folder = tmp_path_factory.mktemp("nvml")
    result = Played()
    with otlp_sink() as sink:
        run_agent(folder, sink, result)
        result.requests = list(sink.metrics)
    with running_receiver(folder / "store.duckdb") as receiver:
        url = f"http://{receiver.http}"
        for number, case in enumerate(CASES):
            for name, faults in (("slow", (device_fault(),)), ("healthy", ())):
                job = Job(f"{case}-{name}", ranks=2, steps=STEPS, faults=faults)
                made = JobRequests(job, result.begin_unix_ns, host_of(result.requests))
                for first in range(0, STEPS, 50):
                    for path, body in made.steps(first, first + 49):
                        post(url + path, body)
                for request in result.requests:
                    post(url + "/v1/metrics", of_case(request, job.name, 2 * number))
        receiver.stop()
        for case in CASES:
            for name in ("slow", "healthy"):
                job_name = f"{case}-{name}"
                result.verdicts[job_name] = check_verdict(diagnose(receiver.store, job=job_name))
    return result


def device_fault() -> Fault:
    return Fault("device", 1, FAULT_S, ONSET, phase="forward")


def run_agent(folder: Path, sink: OtlpSink, result: Played) -> None:
    gpus = 2 * len(CASES)
    scenario = Scenario(folder / "scenario", gpus=gpus)
    ranks = []
    base = {
        **os.environ,
        "ROOTWALK_JOB": JOB,
        "WORLD_SIZE": str(gpus),
        "ROOTWALK_RING_DIRECTORY": str(folder),
    }
    try:
        for rank in range(gpus):
            ranks.append(
                subprocess.Popen(
                    ["sleep", "600"], env=base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                )
            )
            scenario.add(rank, "process", ranks[-1].pid, 10 * GIB)
            if rank % 2:
                PLAYS[CASES[rank // 2]](scenario, rank)
        environment = scenario.write()
        start_s = time.monotonic()
        result.begin_unix_ns = time.time_ns() + round(BEGIN_S * NS)
        command = [sys.executable, "-m", "rootwalk.graph", "agent", "--endpoint", sink.endpoint]
        command += ["--job", JOB]
        # Only GPUs: what this machine does meanwhile is no part of the test.
        for sensor in ("bpf", *SENSOR_NAMES):
            if sensor not in ("nvml", "instrumentation"):
                command += ["--without", sensor]
        agent = subprocess.Popen(
            command, env={**os.environ, **environment, "ROOTWALK_RING_DIRECTORY": str(folder)}
        )
        try:
            time.sleep(max(0.0, start_s + END_S + 6.0 - time.monotonic()))
        finally:
            agent.terminate()
            assert agent.wait(60) == 0
    finally:
        for rank_process in ranks:
            rank_process.kill()
            rank_process.wait()


def host_of(sent: list[ExportMetricsServiceRequest]) -> tuple[str, str]:
    attributes = {
        entry.key: entry.value.string_value
        for entry in sent[0].resource_metrics[0].resource.attributes
    }
    return attributes[semconv.HOST_ID], attributes[semconv.HOST_NAME]


def of_case(request: ExportMetricsServiceRequest, job: str, first_rank: int) -> bytes:
    """Return what the agent sent of two ranks, and of the host, as that of a job of its own."""
    chosen = ExportMetricsServiceRequest()
    for group in request.resource_metrics:
        ranks = [e for e in group.resource.attributes if e.key == semconv.TRAINING_RANK]
        if ranks and ranks[0].value.int_value - first_rank not in (0, 1):
            continue
        copy = chosen.resource_metrics.add()
        copy.CopyFrom(group)
        del copy.resource.attributes[:]
        for entry in group.resource.attributes:
            if entry.key in (
                semconv.TRAINING_JOB_ID,
                semconv.TRAINING_RANK,
                semconv.TRAINING_WORLD_SIZE,
            ):
                continue
            copy.resource.attributes.append(entry)
        add(copy.resource.attributes, semconv.TRAINING_JOB_ID, job)
        if ranks:
            add(
                copy.resource.attributes,
                semconv.TRAINING_RANK,
                ranks[0].value.int_value - first_rank,
            )
            add(copy.resource.attributes, semconv.TRAINING_WORLD_SIZE, 2)
    return bytes(chosen.SerializeToString())


def add(attributes: object, key: str, value: str | int) -> None:
    entry = KeyValue(key=key)
    if isinstance(value, int):
        entry.value.int_value = value
    else:
        entry.value.string_value = value
    attributes.append(entry)  # type: ignore[attr-defined]


def post(url: str, body: bytes) -> None:
    answer = requests.post(
        url, body, headers={"Content-Type": "application/x-protobuf"}, timeout=60
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("case", CASES)
@pytest.mark.timeout(1800)
def test_what_nvml_says_of_a_late_ranks_gpu_is_the_cause(played: Played, case: str) -> None:
    (finding,) = played.verdicts[f"{case}-slow"].findings
    assert finding.reason == case
    assert finding.subject.rank == 1
    assert uuid_of(2 * CASES.index(case) + 1) in (finding.subject.node or "")
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.003)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.timeout(1800)
def test_what_nvml_says_is_no_finding_when_nothing_is_slow(played: Played, case: str) -> None:
    assert played.verdicts[f"{case}-healthy"].outcome == "healthy"


@pytest.mark.timeout(1800)
def test_nothing_that_was_read_is_called_missing(played: Played) -> None:
    for verdict in played.verdicts.values():
        assert "nvml" not in {one.sensor for one in verdict.missing_sensors}
