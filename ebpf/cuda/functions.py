"""Which functions of CUDA's libraries are watched, and what their arguments mean.

Pure tables; the numbers of arguments count from 1. A call of one layer often makes calls of the next: PyTorch calls
cuBLAS, which launches by the driver. That is why sums are kept by layer, and layers are not added up.

    library  cuBLAS, cuBLASLt, NCCL   what was asked for
    runtime  libcudart                PyTorch's own launches, copies and waits
    driver   libcuda                  everything, also of libraries that bring a runtime of their own

Source: NVIDIA CUDA Runtime API, CUDA Driver API, cuBLAS; nccl.h of NCCL 2.30.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rootwalk.instrumentation.semconv import TrainingCudaCallKind as Kind
from rootwalk.instrumentation.semconv import TrainingCudaCopyDirection as Direction
from rootwalk.instrumentation.semconv import TrainingCudaLayer as Layer

__all__ = [
    "CALLED_THROUGH",
    "DATA_TYPES",
    "DIRECTIONS",
    "FAMILIES",
    "KINDS",
    "LAYERS",
    "MESSAGES",
    "NCCL_OPERATIONS",
    "Call",
    "DataType",
]

# The numbers of a kind, layer, direction in a cookie are their places here. NCCL's operations follow the kinds.
KINDS = tuple(Kind)
LAYERS = tuple(Layer)
NCCL_OPERATIONS = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "send",
    "recv",
    "group_start",
    "group_end",
)
MESSAGES = frozenset({"send", "recv"})
# enum cudaMemcpyKind; 4 leaves it to the addresses.
DIRECTIONS = (
    Direction.HOST_TO_HOST,
    Direction.HOST_TO_DEVICE,
    Direction.DEVICE_TO_HOST,
    Direction.DEVICE_TO_DEVICE,
    Direction.BY_ADDRESS,
)


class DataType(NamedTuple):
    """A type of NCCL's: its name as PyTorch has it, and its size."""

    name: str
    size_bytes: int


# enum ncclDataType_t, by number.
DATA_TYPES = (
    DataType("Char", 1),
    DataType("Byte", 1),
    DataType("Int", 4),
    DataType("UInt32", 4),
    DataType("Long", 8),
    DataType("UInt64", 8),
    DataType("Half", 2),
    DataType("Float", 4),
    DataType("Double", 8),
    DataType("BFloat16", 2),
    DataType("Float8_e4m3fn", 1),
    DataType("Float8_e5m2", 1),
)


# What a step has thousands of: a probe in these costs milliseconds of each step.
_FREQUENT = frozenset({Kind.LAUNCH, Kind.MATMUL})


class Call(NamedTuple):
    """What a function does, as the program is told it.

    Attributes:
        kind: Its place in `KINDS`, or behind them in `NCCL_OPERATIONS`.
        layer: Its place in `LAYERS`.
        detail: Direction of a copy where no argument says it.
        size_argument: Which argument is bytes or elements; 0 for none.
        detail_argument: Which is a direction or a type; 0 for none.
        communicator_argument: Which is NCCL's communicator; 0 for none.
        is_message: Whether it is a send or a receive, which are numbered apart.
    """

    kind: int
    layer: int
    detail: int = 0
    size_argument: int = 0
    detail_argument: int = 0
    communicator_argument: int = 0
    is_message: bool = False

    @property
    def is_frequent(self) -> bool:
        """Whether a step has thousands of these."""
        return self.kind < len(KINDS) and KINDS[self.kind] in _FREQUENT

    @property
    def cookie(self) -> int:
        """The number that the program is told at each call; programs/cuda.h says how it is made."""
        return (
            self.kind
            | self.layer << 8
            | self.detail << 16
            | self.size_argument << 24
            | self.detail_argument << 28
            | self.communicator_argument << 32
            | self.is_message << 36
        )


def _calls(layer: Layer, kind: Kind, *names: str, size: int = 0) -> dict[str, Call]:
    call = Call(KINDS.index(kind), LAYERS.index(layer), size_argument=size)
    return dict.fromkeys(names, call)


def _copies(
    layer: Layer, direction: Direction, *names: str, size: int = 3, kind: int = 0
) -> dict[str, Call]:
    numbers = KINDS.index(Kind.COPY), LAYERS.index(layer), DIRECTIONS.index(direction)
    return dict.fromkeys(names, Call(*numbers, size, kind))


def _nccl(operation: str, *names: str, count: int = 3, communicator: int = 6) -> dict[str, Call]:
    kind = len(KINDS) + NCCL_OPERATIONS.index(operation)
    type_argument = count + 1 if count else 0
    layer = LAYERS.index(Layer.LIBRARY)
    call = Call(kind, layer, 0, count, type_argument, communicator, operation in MESSAGES)
    return dict.fromkeys(names, call)


_RUNTIME: Mapping[str, Call] = {
    **_calls(
        Layer.RUNTIME,
        Kind.LAUNCH,
        *("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel"),
    ),
    **_calls(Layer.RUNTIME, Kind.GRAPH_LAUNCH, "cudaGraphLaunch"),
    **_copies(Layer.RUNTIME, Direction.BY_ADDRESS, "cudaMemcpy", "cudaMemcpyAsync", kind=4),
    **_copies(
        Layer.RUNTIME, Direction.DEVICE_TO_DEVICE, "cudaMemcpyPeer", "cudaMemcpyPeerAsync", size=5
    ),
    **_calls(Layer.RUNTIME, Kind.STREAM_SYNC, "cudaStreamSynchronize"),
    **_calls(Layer.RUNTIME, Kind.DEVICE_SYNC, "cudaDeviceSynchronize"),
    **_calls(Layer.RUNTIME, Kind.EVENT_SYNC, "cudaEventSynchronize"),
    **_calls(
        Layer.RUNTIME,
        Kind.ALLOCATE,
        *("cudaMalloc", "cudaMallocAsync", "cudaMallocFromPoolAsync", "cudaMallocManaged"),
        size=2,
    ),
    **_calls(Layer.RUNTIME, Kind.FREE, "cudaFree", "cudaFreeAsync"),
    **_calls(Layer.RUNTIME, Kind.HOST_ALLOCATE, "cudaHostAlloc", "cudaMallocHost", size=2),
    **_calls(Layer.RUNTIME, Kind.HOST_FREE, "cudaFreeHost"),
}
_DRIVER: Mapping[str, Call] = {
    **_calls(
        Layer.DRIVER, Kind.LAUNCH, "cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel"
    ),
    **_calls(Layer.DRIVER, Kind.GRAPH_LAUNCH, "cuGraphLaunch"),
    **_copies(Layer.DRIVER, Direction.BY_ADDRESS, "cuMemcpy", "cuMemcpyAsync"),
    **_copies(Layer.DRIVER, Direction.HOST_TO_DEVICE, "cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2"),
    **_copies(Layer.DRIVER, Direction.DEVICE_TO_HOST, "cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2"),
    **_copies(Layer.DRIVER, Direction.DEVICE_TO_DEVICE, "cuMemcpyDtoD_v2", "cuMemcpyDtoDAsync_v2"),
    **_copies(
        Layer.DRIVER, Direction.DEVICE_TO_DEVICE, "cuMemcpyPeer", "cuMemcpyPeerAsync", size=5
    ),
    **_calls(Layer.DRIVER, Kind.STREAM_SYNC, "cuStreamSynchronize"),
    **_calls(Layer.DRIVER, Kind.DEVICE_SYNC, "cuCtxSynchronize"),
    **_calls(Layer.DRIVER, Kind.EVENT_SYNC, "cuEventSynchronize"),
    **_calls(
        Layer.DRIVER, Kind.ALLOCATE, "cuMemAlloc_v2", "cuMemAllocAsync", "cuMemCreate", size=2
    ),
    **_calls(Layer.DRIVER, Kind.FREE, "cuMemFree_v2", "cuMemFreeAsync", "cuMemRelease"),
    **_calls(Layer.DRIVER, Kind.HOST_ALLOCATE, "cuMemHostAlloc", "cuMemAllocHost_v2", size=2),
    **_calls(Layer.DRIVER, Kind.HOST_FREE, "cuMemFreeHost"),
}
# Of cuBLAS, what PyTorch calls; with 32-bit and 64-bit sizes.
_CUBLAS: Mapping[str, Call] = _calls(
    Layer.LIBRARY,
    Kind.MATMUL,
    *(
        f"cublas{name}{bits}"
        for name in (
            *("GemmEx", "GemmStridedBatchedEx", "GemmBatchedEx", "SgemmEx"),
            *(f"{letter}gemm_v2" for letter in "SDCZ"),
            *(f"{letter}gemmStridedBatched" for letter in "SDCZH"),
            "Hgemm",
        )
        for bits in ("", "_64")
    ),
)
_CUBLAS_LT: Mapping[str, Call] = _calls(Layer.LIBRARY, Kind.MATMUL, "cublasLtMatmul")
# Functions that do no more than call another that is watched, as nccl.h says: nothing is missing without them.
CALLED_THROUGH: Mapping[str, str] = {"ncclBcast": "ncclBroadcast"}
_NCCL: Mapping[str, Call] = {
    **_nccl("all_reduce", "ncclAllReduce"),
    **_nccl("reduce", "ncclReduce", communicator=7),
    **_nccl("broadcast", "ncclBroadcast"),
    **_nccl("broadcast", "ncclBcast", count=2, communicator=5),
    **_nccl("all_gather", "ncclAllGather", communicator=5),
    **_nccl("reduce_scatter", "ncclReduceScatter"),
    **_nccl("all_to_all", "ncclAlltoAll", communicator=5),
    **_nccl("gather", "ncclGather"),
    **_nccl("scatter", "ncclScatter"),
    **_nccl("send", "ncclSend", count=2, communicator=5),
    **_nccl("recv", "ncclRecv", count=2, communicator=5),
    **_nccl("group_start", "ncclGroupStart", count=0, communicator=0),
    **_nccl("group_end", "ncclGroupEnd", count=0, communicator=0),
}


def _with_streams_of_threads(calls: Mapping[str, Call]) -> Mapping[str, Call]:
    """Add the names that programs with a default stream a thread call instead."""
    return {name + more: call for name, call in calls.items() for more in ("", "_ptsz", "_ptds")}


# Name of a library without version -> its functions.
FAMILIES: Mapping[str, Mapping[str, Call]] = {
    "libcudart": _with_streams_of_threads(_RUNTIME),
    "libcuda": _with_streams_of_threads(_DRIVER),
    "libcublas": _CUBLAS,
    "libcublasLt": _CUBLAS_LT,
    "libnccl": _NCCL,
}
