"""Readers of NVML, of CUDA's calls and of the kernel's log on a machine with an NVIDIA GPU: `make test-gpu`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rootwalk.ebpf.cuda.reader import DROP_REASONS, CudaReader
from rootwalk.ebpf.gpu.device import DeviceReading
from rootwalk.ebpf.gpu.reader import NvmlReader
from rootwalk.ebpf.gpu.worker import GpuWorker
from rootwalk.ebpf.kernel_log import KernelLogReader
from rootwalk.ebpf.reader import Measurement, Place
from rootwalk.ebpf.targets import Targets
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import UnavailableError
from support import nvidia_smi, torch_calls
from support.bpf_programs import open_targets
from support.cuda_calls import read_sums
from support.cuda_watch import open_reader
from support.cuda_watch import watch as watch_as
from support.nvml_values import wait_for
from support.real_gpu import ON_A_GPU

pytestmark = ON_A_GPU

HERE = Path(__file__).parent
LOOKS = 10
# Of a core, at one look a second.
MAX_CORE = 0.01
DEADLINE_S = 20.0


@pytest.fixture
def targets() -> Iterator[Targets]:
    """Yield the table of watched processes."""
    with open_targets() as opened:
        yield opened


def test_the_reader_says_what_nvidia_smi_says() -> None:
    reader = NvmlReader(Place())
    try:
        found = wait_for(reader, bool)
        told = nvidia_smi.ask()
        assert told
        assert nvidia_smi.find_differences(told, found) == []
    finally:
        reader.close()


def test_what_a_look_costs() -> None:
    worker = GpuWorker()
    try:
        first_cpu_s, first_wall_s = time_looks(worker, is_first=True)
        cpu_s, wall_s = time_looks(worker, is_first=False)
        said = worker.look()
    finally:
        worker.close()
    gpus = len(said["devices"])
    sys.stdout.write(
        f"{gpus} GPU: all signals {first_cpu_s * 1e3:.1f} ms of CPU, {first_wall_s * 1e3:.1f} ms; at 1 Hz "
        f"{cpu_s * 1e3:.1f} ms of CPU, {wall_s * 1e3:.1f} ms a look\n"
    )
    sys.stdout.write(f"{json.dumps(said)}\n")
    assert cpu_s < MAX_CORE * gpus


def time_looks(worker: GpuWorker, *, is_first: bool) -> tuple[float, float]:
    """Return CPU time and time of a look, s: the median where nothing is known, else the mean at one a second."""
    cpu_s, wall_s = [], []
    began_s = time.monotonic()
    for number in range(LOOKS // 3 if is_first else LOOKS):
        if is_first:
            worker.readings = {
                uuid: DeviceReading(worker.nvml, one.device, worker.clock_s)
                for uuid, one in worker.readings.items()
            }
        else:
            time.sleep(max(0.0, began_s + number - time.monotonic()))
        before_cpu_s, before_s = time.process_time(), time.perf_counter()
        worker.look()
        cpu_s.append(time.process_time() - before_cpu_s)
        wall_s.append(time.perf_counter() - before_s)
    average = statistics.median if is_first else statistics.mean
    return average(cpu_s), average(wall_s)


def test_calls_of_real_libraries_on_a_real_device_are_counted_exactly(targets: Targets) -> None:
    reader = open_reader(targets)
    try:
        found = count_calls(targets, reader)
    finally:
        reader.close()
    calls = read_sums(found, semconv.METRIC_TRAINING_CUDA_CALLS)
    sys.stdout.write(f"{calls}\n")
    for layer in ("runtime", "driver"):
        assert calls[layer, "copy", "host_to_device"] == torch_calls.COPIES
        assert calls[layer, "copy", "device_to_host"] == torch_calls.READS
        assert calls[layer, "stream_sync"] == torch_calls.READS
        # The product's result takes one more, as everything was given back in the turn before.
        assert calls[layer, "allocate"] == torch_calls.ALLOCATIONS + 1
        assert calls[layer, "free"] == torch_calls.ALLOCATIONS + 1
    assert calls["runtime", "launch"] == torch_calls.LAUNCHES
    assert calls["runtime", "device_sync"] == torch_calls.WAITS
    assert calls["library", "matmul"] == torch_calls.PRODUCTS
    # A product is one kernel or more, as cuBLAS likes, which calls the driver itself.
    assert calls["driver", "launch"] >= torch_calls.LAUNCHES + torch_calls.PRODUCTS
    copied = read_sums(found, semconv.METRIC_TRAINING_CUDA_COPY_IO)
    assert copied["runtime", "host_to_device"] == torch_calls.COPIES * torch_calls.SIZE
    assert set(read_sums(found, semconv.METRIC_TRAINING_CUDA_CALL_FAILURES).values()) <= {0}


def count_calls(targets: Targets, reader: CudaReader) -> list[Measurement]:
    """Return what is counted of one turn of the program."""
    with subprocess.Popen(
        [sys.executable, torch_calls.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        watch_as(targets, reader, process.pid, 3)
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        found = list(reader.measurements())
        process.kill()
    assert {reader.losses()[name] for name in DROP_REASONS} == {0}
    return found


def wait_until(is_so: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + DEADLINE_S
    while not (so := is_so()) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    return so


def test_an_error_of_a_program_is_told_with_its_number() -> None:
    """Last: the driver reports an Xid of a program that writes where it may not."""
    try:
        log = KernelLogReader(Place())
    except UnavailableError as error:
        pytest.skip(f"kernel log: {error}")
    nvml = GpuWorker()
    told: list[str] = []
    reported: list[list[Any]] = []
    try:
        list(log.occurrences())
        nvml.look()
        done = subprocess.run([sys.executable, HERE / "xid.py"], capture_output=True, text=True)
        sys.stdout.write(done.stdout + done.stderr)
        assert done.returncode == 0

        def has_told() -> bool:
            told.extend(f"{one.text} {dict(one.attributes)}" for one in log.occurrences())
            reported.extend(nvml.look()["errors"])
            return bool(told) and bool(reported)

        assert wait_until(has_told), (told, reported)
    finally:
        log.close()
        nvml.close()
        sys.stdout.write(f"{told}\n{reported}\n")
    (gpu,) = nvidia_smi.ask()[:1]
    assert any("Xid 31" in line for line in told)
    assert [gpu["uuid"], 31] in [[uuid, code] for uuid, _, code in reported]
