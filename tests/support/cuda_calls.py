"""A process that calls CUDA's libraries, each function a number of times, and what has to be counted of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rootwalk.ebpf.cuda.reader import CudaReader
from rootwalk.ebpf.reader import Measurement
from rootwalk.instrumentation import semconv
from support.live_check import check_measurement

# Bytes, elements, NCCL's Float and BFloat16, and a communicator.
SIZE, COUNT, FLOAT, BFLOAT16, COMMUNICATOR = 4099, 11, 7, 9, 0x5EED00
# Function -> its arguments, as Python; `P` makes a pointer, `Z` a size, `OUT` is room for a pointer.
ARGUMENTS: Mapping[str, str] = {
    "cudaGraphLaunch": "P(0), P(0)",
    "cudaMemcpy": f"P(64), P(128), Z({SIZE}), 1",
    "cudaMemcpyAsync": f"P(64), P(128), Z({SIZE}), 2, P(0)",
    "cudaStreamSynchronize": "P(0)",
    "cudaDeviceSynchronize": "",
    "cudaEventSynchronize": "P(0)",
    "cudaMalloc": f"OUT, Z({SIZE})",
    "cudaFree": "P(0)",
    "cuLaunchKernel": "P(0), 1, 1, 1, 1, 1, 1, 0, P(0), P(0), P(0)",
    "cuMemcpyDtoDAsync_v2": f"P(64), P(128), Z({SIZE}), P(0)",
    "cublasSgemm_v2": ", ".join(["P(0)"] * 14),
    "cublasGemmEx": ", ".join(["P(0)"] * 19),
    "cublasLtMatmul": ", ".join(["P(0)"] * 16),
    "ncclAllReduce": f"P(64), P(64), Z({COUNT}), {FLOAT}, 0, COMM, P(0)",
    "ncclReduce": f"P(64), P(64), Z({COUNT}), {BFLOAT16}, 0, 0, COMM, P(0)",
    "ncclBroadcast": f"P(64), P(64), Z({COUNT}), {FLOAT}, 0, COMM, P(0)",
    "ncclBcast": f"P(64), Z({COUNT}), {FLOAT}, 0, COMM, P(0)",
    "ncclAllGather": f"P(64), P(64), Z({COUNT}), {FLOAT}, COMM, P(0)",
    "ncclReduceScatter": f"P(64), P(64), Z({COUNT}), {BFLOAT16}, 0, COMM, P(0)",
    "ncclAlltoAll": f"P(64), P(64), Z({COUNT}), {FLOAT}, COMM, P(0)",
    "ncclSend": f"P(64), Z({COUNT}), {FLOAT}, 1, COMM, P(0)",
    "ncclRecv": f"P(64), Z({COUNT}), {FLOAT}, 1, COMM, P(0)",
    "ncclGroupStart": "",
    "ncclGroupEnd": "",
}


def write_calls(
    libraries: Sequence[Path],
    times_by_function: Mapping[str, int],
    communicator: int = COMMUNICATOR,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return the code of a process that calls functions each turn, and says how many ns that took in all.

    Args:
        libraries: What it loads, in order.
        times_by_function: How often it calls which.
        communicator: What it calls a communicator; 0 for none, which the real library refuses.
        environment: What the libraries find in theirs.
    """
    calls = "\n".join(
        f"    for _ in range({times}): call_{name}({ARGUMENTS[name]})"
        for name, times in times_by_function.items()
    )
    names = "\n".join(f"call_{name} = find({name!r})" for name in times_by_function)
    return f"""
import ctypes, os, time
os.environ.update({dict(environment or {})!r})
P, Z, OUT, COMM = ctypes.c_void_p, ctypes.c_size_t, ctypes.byref(ctypes.c_void_p()), ctypes.c_void_p({communicator})
libraries = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in {[str(path) for path in libraries]!r}]
def find(name):
    return next(getattr(one, name) for one in libraries if hasattr(one, name))
{names}
def turn():
    start = time.perf_counter_ns()
{calls}
    return time.perf_counter_ns() - start
"""


def settle(reader: CudaReader) -> None:
    """Let a reader look until it has attached to everything that it found."""
    reader.look()
    while not reader.is_settled:
        reader.look()


def read_sums(
    measurements: Iterable[Measurement], metric: str, **attributes: str
) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by (layer, kind, direction) or (operation, type), of those with some attributes."""
    keys = (
        semconv.TRAINING_CUDA_LAYER,
        semconv.TRAINING_CUDA_CALL_KIND,
        semconv.TRAINING_CUDA_COPY_DIRECTION,
        semconv.TRAINING_NCCL_OPERATION,
        semconv.COLLECTIVE_DATA_TYPE,
    )
    wanted = {name.replace("__", "."): value for name, value in attributes.items()}
    measurements = list(measurements)
    for one in measurements:
        check_measurement(one)
    return {
        tuple(str(one.attributes[key]) for key in keys if key in one.attributes): one.value
        for one in measurements
        if one.metric == metric and wanted.items() <= one.attributes.items()
    }
