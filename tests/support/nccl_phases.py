"""A process that makes communicators of NCCL and calls in them, turn by turn, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rootwalk.ebpf.cuda.reader import CudaReader
from rootwalk.instrumentation import ids, semconv
from support.live_check import check_measurement

SLOT = 3
OPERATIONS, CALLS = semconv.METRIC_TRAINING_NCCL_OPERATIONS, semconv.METRIC_TRAINING_NCCL_CALLS
ID, SIZE = semconv.COLLECTIVE_COMMUNICATOR_ID, semconv.COLLECTIVE_COMMUNICATOR_SIZE
IS_MESSAGE = semconv.COLLECTIVE_IS_POINT_TO_POINT
ADDRESS = semconv.TRAINING_NCCL_COMMUNICATOR
# All 128 bytes count: these differ in the last one only.
A, B = bytes(range(1, 128)) + b"a", bytes(range(1, 128)) + b"b"
ID_A, ID_B = ids.nccl_communicator_id(A), ids.nccl_communicator_id(B)

# What a phase may call. `comms` are pointers by name.
PRELUDE = """
import ctypes, os
os.environ.update({environment!r})
P, Z = ctypes.c_void_p, ctypes.c_size_t
libraries = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in {libraries!r}]
nccl = libraries[-1]
class Id(ctypes.Structure): _fields_ = [("internal", ctypes.c_char * 128)]
A, B = Id.from_buffer_copy({a!r}), Id.from_buffer_copy({b!r})
comms = {{}}
def at(name): return ctypes.byref(comms.setdefault(name, P()))
def make(name, unique_id, members, rank): return nccl.ncclCommInitRank(at(name), members, unique_id, rank)
def split(parent, child, colour): return nccl.ncclCommSplit(comms[parent], colour, 0, at(child), P(0))
def destroy(name): return nccl.ncclCommDestroy(comms[name])
def reduce(name, times=1, type=7):
    for _ in range(times): code = nccl.ncclAllReduce(P(64), P(64), Z(11), type, 0, comms[name], P(0))
    return code
def gather(name, times):
    for _ in range(times): nccl.ncclAllGather(P(64), P(64), Z(11), 7, comms[name], P(0))
def send(name, times):
    for _ in range(times): nccl.ncclSend(P(64), Z(11), 7, 1, comms[name], P(0))
def bcast(name, times):
    for _ in range(times): nccl.ncclBcast(P(64), Z(11), 7, 0, comms[name], P(0))
phases = iter({phases!r})
def turn(): return eval(next(phases))
"""


def write_phases(
    libraries: Sequence[Path], *phases: str, environment: dict[str, str] | None = None
) -> str:
    """Return the code of a process that evaluates one expression each turn."""
    return PRELUDE.format(
        libraries=[str(path) for path in libraries],
        environment=environment or {},
        phases=phases,
        a=A,
        b=B,
    )


def read_operations(reader: CudaReader, slot: int = SLOT) -> dict[tuple[str, bool], float]:
    """Return what a rank has called, by communicator and whether messages or collectives."""
    found = [one for one in reader.measurements() if one.metric == OPERATIONS]
    for one in found:
        check_measurement(one)
    own = [one for one in found if one.slot == slot]
    by_key = {(str(one.attributes[ID]), bool(one.attributes[IS_MESSAGE])): one for one in own}
    assert len(by_key) == len(own)
    return {key: one.value for key, one in by_key.items()}


def read_calls(reader: CudaReader) -> dict[str | None, float]:
    """Return how many calls have returned, by the id of the communicator, None for one that has none."""
    sums: dict[str | None, float] = {}
    for one in reader.measurements():
        check_measurement(one)
        if one.metric == CALLS:
            assert ADDRESS in one.attributes
            name = one.attributes.get(ID)
            key = None if name is None else str(name)
            sums[key] = sums.get(key, 0) + one.value
    return sums
