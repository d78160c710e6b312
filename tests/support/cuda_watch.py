"""A reader of CUDA calls and the processes that it watches, for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.cuda.reader import CudaReader
from rootwalk.ebpf.reader import Place
from rootwalk.ebpf.targets import Targets
from rootwalk.instrumentation.errors import UnavailableError
from support.cuda_calls import settle
from support.cuda_standin import (
    CUBLAS,
    CUBLAS_LT,
    DRIVER,
    NCCL,
    RUNTIME,
    build_standins,
    has_compiler,
)


def open_reader(targets: Targets, **how: bool) -> CudaReader:
    """Open a reader at level 2; skip where functions cannot be attached to."""
    try:
        reader = CudaReader(Place(targets=targets), **how)
    except UnavailableError as error:
        if error.reason != Reason.NO_UPROBES:
            raise
        pytest.skip(f"bpf: {error.reason}: {error}")
    reader.set_level(2)
    return reader


def find_standins() -> list[Path]:
    """Return the stand-ins of all libraries, in the order in which they are loaded; skip without a compiler."""
    if not has_compiler():
        pytest.skip("cuda: needs a C compiler")
    return [build_standins() / name for name in (DRIVER, RUNTIME, CUBLAS_LT, CUBLAS, NCCL)]


def watch(targets: Targets, reader: CudaReader, pid: int, slot: int) -> None:
    """Watch a process, and wait until its libraries are attached to."""
    targets.watch(pid, slot)
    reader.watch(pid, slot)
    settle(reader)
