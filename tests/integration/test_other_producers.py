"""Telemetry of other producers beside our own steps: it names the cause where none of our sensors counts it.

    steps    500 of 120 ms | 400 of 180 ms        the fault costs 60 ms a step, from 60 s on
    scrapes  every 10 s

Each of them changes a verdict; beside each is what looks like it and must accuse nobody.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Finding
from rootwalk.otel_receiver.signals import Signal
from support.counters import Told, add_counters, growing, level, tell_sensor
from support.jobs import HEALTHY_STEP_S, Fault, Job, write_job
from support.other_producers import (
    Value,
    datadog_rank,
    dcgm_exporter,
    gpu_uuid,
    node_exporter,
    obi,
    receive,
)
from support.stores import query_rows
from support.verdicts import check_verdict

FAULT_S, ONSET, STEPS = 0.060, 500, 900
ONSET_S = ONSET * HEALTHY_STEP_S
FAULTS = {
    "work": Fault("work", 1, FAULT_S, ONSET),
    "pages": Fault("page_fault", 1, FAULT_S, ONSET),
    "device": Fault("device", 1, FAULT_S, ONSET, phase="forward"),
    "transfer": Fault("transfer_foreign", -1, FAULT_S, ONSET),
}
LATE_HOST, OTHER_HOST = 0, 1
Metrics = list[bytes]
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Stores of a job of four ranks on two hosts, two GPUs each, by the fault of rank 1."""
    folder = tmp_path_factory.mktemp("jobs")
    return {
        name: write_job(
            folder / f"{name}.duckdb", Job(ranks=4, hosts=2, steps=STEPS, faults=(fault,))
        )
        for name, fault in FAULTS.items()
    }


@pytest.fixture
def make(tmp_path: Path, jobs: Mapping[str, Path]) -> Make:
    """Returns a store with others' telemetry beside a job's records."""

    def copy(fault: str, metrics: Metrics, spans: Metrics | None = None) -> Path:
        path = tmp_path / f"store{len(list(tmp_path.iterdir()))}.duckdb"
        shutil.copy(jobs[fault], path)
        receive(path, Signal.METRICS, metrics)
        receive(path, Signal.TRACES, spans or [])
        return path

    return copy


def find(path: Path) -> Finding:
    (finding,) = check_verdict(diagnose(path)).findings
    for row in finding.evidence:
        if row.query and "FROM metrics" in row.query:
            assert query_rows(path, row.query)
    return finding


def reason_of(path: Path) -> str:
    return str(find(path).reason)


def hot(number: int, reasons: str = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS") -> Metrics:
    """One GPU of the late host is clocked down for its temperature, from the onset on."""

    def each(before: float, after: float) -> list[Value]:
        moving = level(before, after, ONSET_S)
        return [moving if at == number else level(before, before, 0.0) for at in (0, 1)]

    still = [level(1980.0, 1980.0, 0.0)] * 2
    return [
        dcgm_exporter(LATE_HOST, "DCGM_FI_DEV_SM_CLOCK", each(1980.0, 1320.0)),
        dcgm_exporter(LATE_HOST, reasons, each(0.0, 0x20)),
        dcgm_exporter(OTHER_HOST, "DCGM_FI_DEV_SM_CLOCK", still),
    ]


@pytest.mark.parametrize(
    "reasons",
    [
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        pytest.param("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", marks=pytest.mark.variant),
    ],
)
def test_a_gpu_that_dcgm_saw_hot_is_the_cause_of_its_rank(make: Make, reasons: str) -> None:
    finding = find(make("pages", hot(1, reasons)))
    assert (finding.reason, finding.subject.rank) == ("GPU_THERMAL", 1)
    assert finding.subject.device == gpu_uuid(LATE_HOST, 1)
    shown = [row.query for row in finding.evidence if row.query and "DCGM_FI_DEV_SM" in row.query]
    assert shown
    assert reason_of(make("pages", [])) == "UNKNOWN_HOST"


def test_another_rank_s_hot_gpu_is_not_the_cause(make: Make) -> None:
    assert reason_of(make("pages", hot(0))) == "UNKNOWN_HOST"


@pytest.mark.long
def test_datadog_and_obi_say_which_gpu_a_rank_has(make: Make) -> None:
    swapped = [datadog_rank(rank, LATE_HOST, gpu_uuid(LATE_HOST, 1 - rank)) for rank in (0, 1)]
    assert reason_of(make("pages", hot(0), swapped)) == "GPU_THERMAL"
    assert reason_of(make("pages", hot(1), swapped)) == "UNKNOWN_HOST"
    calls = {"gpu.cuda.kernel.launch.calls": growing(100.0, -70.0)}
    used = [obi(LATE_HOST, 1000 + rank, calls, gpu_uuid(LATE_HOST, 1 - rank)) for rank in (0, 1)]
    assert reason_of(make("pages", [*hot(0), *used])) == "GPU_THERMAL"
    assert reason_of(make("pages", [*hot(1), *used])) == "UNKNOWN_HOST"


@pytest.mark.long
def test_spans_of_several_jobs_say_of_no_rank_which_gpu_it_has(make: Make) -> None:
    mixed = [
        datadog_rank(rank, LATE_HOST, gpu_uuid(LATE_HOST, 1 - rank), f"run-{rank}")
        for rank in (0, 1)
    ]
    assert reason_of(make("pages", hot(1), mixed)) == "GPU_THERMAL"  # as the host's order has it


def test_what_our_own_sensor_counts_nobody_else_is_asked(make: Make) -> None:
    path = make("pages", hot(1))
    own = {"hw.id": gpu_uuid(LATE_HOST, 1), "training.gpu.clock": "sm"}
    steady = Told("training.gpu.frequency", level(1.98e9, 1.98e9, 0.0), LATE_HOST, 1, own)
    add_counters(path, (steady,), 140.0)
    assert reason_of(path) == "UNKNOWN_HOST"


def test_a_clock_alone_that_stands_still_says_nothing_of_a_slow_device(make: Make) -> None:
    still = [level(1980.0, 1980.0, 0.0)] * 2
    path = make("device", [dcgm_exporter(host, "DCGM_FI_DEV_SM_CLOCK", still) for host in (0, 1)])
    for host in (0, 1):
        tell_sensor(path, "nvml", "available", host)
    assert reason_of(path) == "UNKNOWN_GPU"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("DCGM_FI_DEV_XID_ERRORS", level(0.0, 79.0, ONSET_S), "GPU_LOST"),
        ("DCGM_FI_DEV_XID_ERRORS", level(79.0, 79.0, 0.0), "UNKNOWN_HOST"),
        ("DCGM_FI_DEV_XID_ERRORS", level(0.0, 13.0, ONSET_S), "UNKNOWN_HOST"),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", growing(200.0, ONSET_S), "GPU_ECC"),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", growing(200.0, ONSET_S), "UNKNOWN_HOST"),
    ],
)
def test_errors_that_dcgm_counts(make: Make, name: str, values: Value, reason: str) -> None:
    still = level(0.0, 0.0, 0.0)
    assert reason_of(make("pages", [dcgm_exporter(LATE_HOST, name, [still, values])])) == reason


def stolen(host: int, rate: float) -> bytes:
    series = {
        ("0", "user"): growing(1.0, -70.0),
        ("0", "idle"): growing(0.5, -70.0),
        ("0", "steal"): growing(rate, ONSET_S),
    }
    return node_exporter(host, "node_cpu_seconds_total", series, "cpu", "mode")


def dropped(host: int, rate: float, device: str = "eth0") -> bytes:
    name = "node_network_receive_drop_total"
    return node_exporter(host, name, {(device,): growing(rate, ONSET_S)}, "device")


def swapped(host: int, rate: float) -> bytes:
    return node_exporter(host, "node_vmstat_pswpin", {(): growing(rate, ONSET_S)})


def broken(host: int, rate: float) -> bytes:
    series = {("mlx5_0", "1"): growing(rate, ONSET_S)}
    return node_exporter(host, "node_infiniband_symbol_error_total", series, "device", "port")


NODE_CASES = {
    "steal": ("work", partial(stolen, rate=0.5), partial(stolen, rate=0.002), "CPU_STEAL"),
    "drops": ("transfer", partial(dropped, rate=5.0), partial(dropped, rate=0.01), "NET_LOSS"),
    "swap": ("pages", partial(swapped, rate=500.0), partial(swapped, rate=1.0), "SWAP"),
    "symbols": ("transfer", partial(broken, rate=5.0), partial(broken, rate=0.01), "NET_LOSS"),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "steal" else pytest.mark.long) for name in NODE_CASES],
)
def test_what_node_exporter_counts_of_the_late_host(make: Make, name: str) -> None:
    fault, much, little, reason = NODE_CASES[name]
    seen = find(make(fault, [much(LATE_HOST), little(OTHER_HOST)]))
    assert (seen.reason, seen.subject.host) == (reason, "host-0")
    without = reason_of(make(fault, []))
    assert without != reason
    assert reason_of(make(fault, [little(LATE_HOST), little(OTHER_HOST)])) == without
    # A machine that scrapes alike and has no rank of the job.
    assert reason_of(make(fault, [much(7)])) == without


def test_segments_that_a_whole_host_sent_again_are_no_rank_s(make: Make) -> None:
    sent_again = node_exporter(0, "node_netstat_Tcp_RetransSegs", {(): growing(5.0, ONSET_S)})
    assert reason_of(make("transfer", [sent_again])) == "UNKNOWN_NET"


SYNC = "gpu.cuda.stream.synchronize.calls"
LAUNCH = "gpu.cuda.kernel.launch.calls"
FREED = "gpu.cuda.memory.free.bytes"


def more(before: float, after: float) -> Value:
    """A count that grows faster from the onset on, as long as steps last so long."""
    return lambda now: before * (now + 70.0) + (after - before) * max(now - ONSET_S, 0.0)


ASKED = {"gpu.cuda.memory.allocations": more(0.0, 1e9)}


@pytest.mark.parametrize(
    ("pid", "values", "reason"),
    [
        (1001, {SYNC: more(8.0, 500.0), LAUNCH: more(8000.0, 5300.0)}, "ACCIDENTAL_SYNC"),
        # More launches too: more work, not more waiting.
        (1001, {SYNC: more(8.0, 500.0), LAUNCH: more(8000.0, 16000.0)}, "WORK_IMBALANCE"),
        # Another process of the host.
        (4711, {SYNC: more(8.0, 500.0), LAUNCH: more(8000.0, 5300.0)}, "WORK_IMBALANCE"),
        pytest.param(1001, {FREED: more(0.0, 1e9)}, "ALLOCATOR", marks=pytest.mark.long),
        pytest.param(1001, ASKED, "WORK_IMBALANCE", marks=pytest.mark.long),
    ],
)
def test_calls_of_a_rank_s_process_that_obi_counts(
    make: Make, pid: int, values: Mapping[str, Value], reason: str
) -> None:
    finding = find(make("work", [obi(LATE_HOST, pid, values)]))
    assert (finding.reason, finding.subject.rank) == (reason, 1)
