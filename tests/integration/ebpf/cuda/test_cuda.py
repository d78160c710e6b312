"""Calls of CUDA's libraries by uprobes, against stand-ins of all of them and the real ones of PyTorch's wheel.

No GPU: the stand-ins play a scenario, and the real libraries answer every call with an error, which is a call as well.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.cuda.reader import DROP_REASONS, CudaReader
from rootwalk.ebpf.function_probes import FunctionProbes
from rootwalk.ebpf.targets import Targets
from rootwalk.instrumentation import semconv
from support.cuda_calls import COMMUNICATOR, COUNT, SIZE, read_sums, settle, write_calls
from support.cuda_standin import FOREVER_S, write_scenario
from support.cuda_watch import open_reader
from support.cuda_watch import watch as watch_as
from support.puppet import puppet
from support.wheel_libraries import find_wheel_libraries

# Compiling the stand-ins takes an emulated machine minutes: there the program is loaded, and no more.
pytestmark = [pytest.mark.bpf, pytest.mark.slow]

SLOT = 3
CALLS, TIME = semconv.METRIC_TRAINING_CUDA_CALLS, semconv.METRIC_TRAINING_CUDA_CALL_TIME
FAILURES = semconv.METRIC_TRAINING_CUDA_CALL_FAILURES
NCCL_CALLS, NCCL_IO = semconv.METRIC_TRAINING_NCCL_CALLS, semconv.METRIC_TRAINING_NCCL_IO
# Each a prime number, so that no sum of others is one of them by chance.
TIMES = {
    "cudaGraphLaunch": 101,
    "cudaMemcpy": 103,
    "cudaMemcpyAsync": 107,
    "cudaStreamSynchronize": 109,
    "cudaDeviceSynchronize": 113,
    "cudaEventSynchronize": 127,
    "cudaMalloc": 131,
    "cudaFree": 137,
    "cuMemcpyDtoDAsync_v2": 139,
    "cublasSgemm_v2": 149,
    "cublasGemmEx": 151,
    "cublasLtMatmul": 157,
    "ncclAllReduce": 163,
    "ncclReduce": 167,
    "ncclBroadcast": 173,
    "ncclBcast": 179,
    "ncclAllGather": 181,
    "ncclReduceScatter": 191,
    "ncclAlltoAll": 193,
    "ncclSend": 197,
    "ncclRecv": 199,
    "ncclGroupStart": 211,
    "ncclGroupEnd": 223,
}
COLLECTIVES = sum(
    times for name, times in TIMES.items() if name.startswith("nccl") and "Group" not in name
)
PRODUCTS = 149 + 151 + 157


def watch(targets: Targets, reader: CudaReader, pid: int) -> None:
    watch_as(targets, reader, pid, SLOT)


def test_every_call_of_every_stand_in_is_counted_once(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    with puppet(write_calls(standins, TIMES)) as process:
        watch(targets, reader, process.pid)
        process.turn()
        found = list(reader.measurements())
    assert {one.slot for one in found} == {SLOT}
    assert read_sums(found, CALLS) == {
        ("runtime", "graph_launch"): 101,
        ("runtime", "copy", "host_to_device"): 103,
        ("runtime", "copy", "device_to_host"): 107,
        ("runtime", "stream_sync"): 109,
        ("runtime", "device_sync"): 113,
        ("runtime", "event_sync"): 127,
        ("runtime", "allocate"): 131,
        ("runtime", "free"): 137,
        # The runtime calls the driver for each of these.
        ("driver", "graph_launch"): 101,
        ("driver", "copy", "host_to_device"): 103,
        ("driver", "copy", "device_to_host"): 107,
        ("driver", "copy", "device_to_device"): 139,
        ("driver", "stream_sync"): 109,
        ("driver", "device_sync"): 113,
        ("driver", "event_sync"): 127,
        ("driver", "allocate"): 131,
        ("driver", "free"): 137,
        # cublasGemmEx calls cublasLtMatmul, and a product is a launch of the driver's, as a collective is.
        ("library", "matmul"): PRODUCTS,
        ("driver", "launch"): PRODUCTS + COLLECTIVES,
    }
    assert read_sums(found, NCCL_CALLS) == {
        ("all_reduce", "Float"): 163,
        ("reduce", "BFloat16"): 167,
        ("broadcast", "Float"): 173 + 179,  # ncclBcast calls ncclBroadcast
        ("all_gather", "Float"): 181,
        ("reduce_scatter", "BFloat16"): 191,
        ("all_to_all", "Float"): 193,
        ("send", "Float"): 197,
        ("recv", "Float"): 199,
        ("group_start",): 211,
        ("group_end",): 223,
    }
    moved = read_sums(found, NCCL_IO)
    assert moved["all_reduce", "Float"] == 163 * COUNT * 4
    assert moved["reduce", "BFloat16"] == 167 * COUNT * 2
    assert {
        one.attributes[semconv.TRAINING_NCCL_COMMUNICATOR] for one in found if one.metric == NCCL_IO
    } == {f"{COMMUNICATOR:#x}"}
    copied = read_sums(found, semconv.METRIC_TRAINING_CUDA_COPY_IO)
    assert copied["runtime", "device_to_host"] == 107 * SIZE
    assert copied["driver", "device_to_device"] == 139 * SIZE
    allocated = read_sums(found, semconv.METRIC_TRAINING_CUDA_ALLOCATED_SIZE)
    assert allocated["driver", "allocate"] == 131 * SIZE
    assert set(read_sums(found, FAILURES).values()) == {0}
    assert set(reader.losses()) >= set(DROP_REASONS)
    assert set(reader.losses().values()) == {0}


def test_time_is_that_of_the_calls(
    targets: Targets, reader: CudaReader, standins: list[Path], tmp_path: Path
) -> None:
    # A wait ends when the device has done what it was given: 17 products of 5 ms, and 3 ms on the host each time.
    played = write_scenario(
        tmp_path / "scenario",
        {"matmul": 0.005, "cudaStreamSynchronize": 0.003, "cudaMalloc": 0.002},
    )
    times = {"cublasSgemm_v2": 1, "cudaStreamSynchronize": 1}
    with puppet(write_calls(standins, times, environment=played)) as process:
        watch(targets, reader, process.pid)
        own_s = sum(int(process.turn()) for _ in range(17)) / 1e9
        found = list(reader.measurements())
    assert read_sums(found, CALLS)["runtime", "stream_sync"] == 17
    seconds = read_sums(found, TIME)
    waited_s = seconds["runtime", "stream_sync"]
    # What the process itself measures is the calls, and nearly nothing beside.
    assert 17 * 0.0049 <= waited_s <= own_s
    assert seconds["driver", "stream_sync"] <= waited_s
    assert seconds["library", "matmul"] <= own_s - waited_s


def test_call_that_never_returns_is_time_and_no_call(
    targets: Targets, reader: CudaReader, standins: list[Path], tmp_path: Path
) -> None:
    played = write_scenario(tmp_path / "scenario", {"cudaDeviceSynchronize": FOREVER_S})
    code = write_calls(standins, {"cudaDeviceSynchronize": 1}, environment=played)
    # Another thread, so that the turn comes back.
    code += "\nimport threading\ninner = turn\ndef turn(): threading.Thread(target=inner, daemon=True).start()\n"
    what = ("runtime", "device_sync")
    with puppet(code) as process:
        watch(targets, reader, process.pid)
        process.turn()
        time.sleep(0.3)
        first = list(reader.measurements())
        time.sleep(0.2)
        second = list(reader.measurements())
    assert read_sums(first, CALLS)[what] == read_sums(second, CALLS)[what] == 0
    assert read_sums(first, TIME)[what] >= 0.25
    assert read_sums(second, TIME)[what] - read_sums(first, TIME)[what] >= 0.2
    # With the process its call ends, without a return.
    ended = read_sums(reader.measurements(), TIME)
    assert what not in ended


def test_processes_that_are_not_watched_are_not_counted(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    code = write_calls(standins, {"cudaFree": 31})
    with puppet(code) as rank, puppet(code) as other:
        watch(targets, reader, rank.pid)
        other.turn()
        assert read_sums(reader.measurements(), CALLS) == {}
        rank.turn()
        assert read_sums(reader.measurements(), CALLS)["runtime", "free"] == 31


def test_level_0_takes_the_probes_away(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    with puppet(write_calls(standins, {"cudaFree": 31})) as process:
        watch(targets, reader, process.pid)
        process.turn()
        reader.set_level(0)
        process.turn()
        settle(reader)
        process.turn()
        assert read_sums(reader.measurements(), CALLS)["runtime", "free"] == 31
        reader.set_level(1)
        settle(reader)
        process.turn()
        assert read_sums(reader.measurements(), CALLS)["runtime", "free"] == 62


def test_what_a_step_has_thousands_of_is_counted_at_level_2_only(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    with puppet(write_calls(standins, {"cudaFree": 31, "cublasSgemm_v2": 29})) as process:
        reader.set_level(1)
        watch(targets, reader, process.pid)
        process.turn()
        found = read_sums(reader.measurements(), CALLS)
        assert (found["runtime", "free"], ("library", "matmul") in found) == (31, False)
        reader.set_level(2)
        settle(reader)
        process.turn()
        found = read_sums(reader.measurements(), CALLS)
        assert (found["runtime", "free"], found["library", "matmul"]) == (62, 29)


def test_ranks_without_the_drivers_library_are_left_alone(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    # As PyTorch's CUDA build on a machine without a GPU: NCCL is loaded, the driver is not there.
    real = find_wheel_libraries()
    if "libnccl.so.2" not in real:
        pytest.skip("needs PyTorch with its CUDA libraries")
    with puppet(write_calls([real["libnccl.so.2"]], {"ncclGroupStart": 31})) as process:
        watch(targets, reader, process.pid)
        process.turn()
        assert reader.measurements() == []
    if not Path("/proc/driver/nvidia/version").exists():
        assert reader.missing is Reason.NO_DRIVER


def test_rank_that_has_ended_leaves_nothing(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    with puppet(write_calls(standins, {"cudaFree": 31})) as process:
        watch(targets, reader, process.pid)
        process.turn()
        assert reader.measurements()
        reader.forget(process.pid)
        assert reader.measurements() == []


# A mount namespace of its own, in which the libraries lie where nothing lies outside.
CONTAINER = """
import ctypes
libc = ctypes.CDLL(None)
assert libc.unshare(0x20000) == 0
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
assert libc.mount({folder!r}, {inside!r}, None, 0x1000, None) == 0
"""


def test_libraries_of_a_container_are_found_through_its_process(
    targets: Targets, reader: CudaReader, standins: list[Path], tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("namespaces: needs root")
    inside = tmp_path / "inside"
    inside.mkdir()
    code = CONTAINER.format(folder=bytes(standins[0].parent), inside=bytes(inside))
    code += write_calls([inside / path.name for path in standins], {"cudaFree": 31})
    with puppet(code) as process:
        assert list(inside.iterdir()) == []
        watch(targets, reader, process.pid)
        process.turn()
        found = list(reader.measurements())
    assert read_sums(found, CALLS) == {("runtime", "free"): 31, ("driver", "free"): 31}


def test_two_ranks_that_run_one_file_are_told_apart(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    code = write_calls(standins, {"cudaFree": 31})
    with puppet(code) as first, puppet(code) as second:
        watch(targets, reader, first.pid)
        targets.watch(second.pid, SLOT + 1)
        reader.watch(second.pid, SLOT + 1)
        settle(reader)
        first.turn()
        second.turn()
        second.turn()
        counts = {
            one.slot: one.value
            for one in reader.measurements()
            if one.metric == CALLS and one.attributes[semconv.TRAINING_CUDA_LAYER] == "runtime"
        }
        # The other goes on with the same file when one of them has ended.
        reader.forget(first.pid)
        second.turn()
        (left,) = read_sums(reader.measurements(), CALLS, training__cuda__layer="runtime").values()
    assert counts == {SLOT: 31, SLOT + 1: 62}
    assert left == 93


def test_kernels_without_links_by_file_count_the_same(
    targets: Targets, standins: list[Path]
) -> None:
    from rootwalk.ebpf.cuda.libraries import FunctionFinder
    from rootwalk.ebpf.cuda.totals import CALL_TOTAL

    open_reader(targets).close()  # skips where probes are refused
    with standins[1].open("rb") as file:
        found = {one.name: one for one in FunctionFinder().find("libcudart", file)}
    free = found["cudaFree"]
    program = FunctionProbes(
        "cuda", "on_call", "on_return", lambda opened: opened.share(targets.map), by_file=False
    )
    try:
        program.attach(standins[1], [(free.offset, free.call.cookie)])
        with puppet(write_calls(standins, {"cudaFree": 31})) as process:
            targets.watch(process.pid, SLOT)
            process.turn()
            ((_, value),) = program.maps["totals"].items()
    finally:
        program.close()
    assert CALL_TOTAL.unpack(value)[0] == 31


# What the real libraries can be asked without a GPU: no launch of a kernel, and no product, which needs a handle.
ASKED = (
    *("cudaMemcpyAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMalloc"),
    *("ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast", "ncclBcast"),
    *("ncclSend", "ncclRecv", "ncclGroupStart", "ncclGroupEnd"),
)


def test_calls_of_the_real_libraries_are_counted_exactly(targets: Targets) -> None:
    real = find_wheel_libraries()
    names = ("libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libnccl.so.2")
    if not all(name in real for name in names):
        pytest.skip("needs PyTorch with its CUDA libraries")
    reader = open_reader(targets, needs_driver=False)
    try:
        check_real(targets, reader, [real[name] for name in names])
    finally:
        reader.close()


def check_real(targets: Targets, reader: CudaReader, libraries: list[Path]) -> None:
    """Call what can be called of real libraries, and check that each call was counted, with its arguments."""
    names = "".join(path.name for path in libraries)
    times = {
        name: TIMES[name]
        for name in ASKED
        if ("libcudart" in names and name.startswith("cuda"))
        or ("libnccl" in names and name.startswith("nccl"))
    }
    if "libcublas.so" in names:
        times |= {"cublasSgemm_v2": 149, "cublasLtMatmul": 157}
    # Without a communicator NCCL refuses at once.
    with puppet(write_calls(libraries, times, communicator=0)) as process:
        watch(targets, reader, process.pid)
        process.turn()
        found = list(reader.measurements())
    assert reader.degraded is None
    expected = {
        ("runtime", "copy", "device_to_host"): 107,
        ("runtime", "stream_sync"): 109,
        ("runtime", "device_sync"): 113,
        ("runtime", "allocate"): 131,
    }
    if "libcublas.so" in names:
        expected["library", "matmul"] = 149 + 157
    if "libcudart" in names and not Path("/proc/driver/nvidia/version").exists():
        assert read_sums(found, CALLS) == expected
        assert read_sums(found, FAILURES) == expected
    if "libnccl" in names:
        assert read_sums(found, NCCL_CALLS) == {
            ("all_reduce", "Float"): 163,
            ("all_gather", "Float"): 181,
            ("reduce_scatter", "BFloat16"): 191,
            ("broadcast", "Float"): 173 + 179,  # ncclBcast calls ncclBroadcast
            ("send", "Float"): 197,
            ("recv", "Float"): 199,
            ("group_start",): 211,
            ("group_end",): 223,
        }
        assert read_sums(found, NCCL_IO)["reduce_scatter", "BFloat16"] == 191 * COUNT * 2


# Other versions, put into one folder: pip install --target FOLDER nvidia-cuda-runtime-cu12 nvidia-nccl-cu12==…
VERSIONS = "ROOTWALK_CUDA_VERSIONS"


def test_calls_of_other_versions_are_counted_exactly(targets: Targets) -> None:
    folder = os.environ.get(VERSIONS)
    if folder is None:
        pytest.skip(f"cuda: needs {VERSIONS}, `make test-cuda-versions`")
    libraries = sorted(
        path
        for pattern in ("libcudart.so.*", "libnccl.so.*")
        for path in Path(folder).rglob(pattern)
    )
    assert len(libraries) >= 2
    for path in libraries:
        reader = open_reader(targets, needs_driver=False)
        try:
            check_real(targets, reader, [path])
        finally:
            reader.close()
