"""The /proc reader against the same known processes."""

from __future__ import annotations

import time

import pytest

from rootwalk.ebpf.events import SampledInterval, SchedEvent
from rootwalk.ebpf.partition import RankPartition
from rootwalk.ebpf.proc_backend import ProcBackend
from rootwalk.instrumentation.errors import UnavailableError
from support import workloads
from support.bpf_programs import LoneBackend


def sample(backend: ProcBackend, partition: RankPartition, duration_s: float) -> tuple[int, int]:
    """Read for a while; return the bounds of what is covered."""
    backend.read()
    start = time.monotonic_ns()
    while time.monotonic_ns() - start < duration_s * 1e9:
        time.sleep(backend.interval_s)
        for record in backend.read():
            if isinstance(record, SampledInterval):
                partition.add(record)
    return start, time.monotonic_ns() - int(backend.interval_s * 1e9)


def test_contended_process_has_half_of_the_cpu() -> None:
    cpu = workloads.last_cpu()
    backend, partition = ProcBackend(), RankPartition("proc", 0)
    with workloads.python(workloads.burn(cpu)) as target, workloads.python(workloads.burn(cpu)):
        time.sleep(0.2)
        backend.watch(target.pid, 1)
        start, end = sample(backend, partition, 1.5)
    times = partition.main_times(start, end)
    assert times is not None
    assert times.sensor == "proc"
    assert times.running_ns is not None
    assert times.blocked_ns is not None
    assert times.running_ns + times.runnable_ns + times.blocked_ns == end - start
    assert times.runnable_ns > 0.2 * (end - start)
    assert times.blocked_ns < 0.1 * (end - start)
    assert times.runnable_foreign_ns is None
    backend.close()


def test_sleeper_is_blocked() -> None:
    backend, partition = ProcBackend(), RankPartition("proc", 0)
    with workloads.python(workloads.sleeper()) as target:
        time.sleep(0.2)
        backend.watch(target.pid, 1)
        start, end = sample(backend, partition, 1.0)
    times = partition.main_times(start, end)
    assert times is not None
    assert times.blocked_ns == pytest.approx(end - start, rel=0.1)


# Its reader may have to wait for a CPU between the clock and the numbers: one quiet try of three decides.
@pytest.mark.flaky(reruns=2)
@pytest.mark.bpf
def test_agrees_with_the_program() -> None:
    try:
        core = LoneBackend()
    except UnavailableError as error:
        pytest.skip(f"bpf: {error.reason}: {error}")
    cpu = workloads.last_cpu()
    proc = ProcBackend()
    exact, coarse = RankPartition("core", 0), RankPartition("proc", 0)
    with workloads.python(workloads.burn(cpu)) as target, workloads.python(workloads.burn(cpu)):
        core.watch(target.pid, 1)
        proc.watch(target.pid, 1)
        workloads.wait_until(lambda: target.pid in core.threads())
        start, end = sample(proc, coarse, 2.0)
    for event in core.read():
        if isinstance(event, SchedEvent):
            exact.add(event)
    core.close()
    one, other = exact.main_times(start, end), coarse.main_times(start, end)
    assert one is not None
    assert other is not None
    assert other.running_ns == pytest.approx(one.running_ns, rel=0.1)
    assert other.runnable_ns == pytest.approx(one.runnable_ns, rel=0.1)
