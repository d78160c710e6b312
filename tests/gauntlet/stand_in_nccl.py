"""A rank's NCCL that a stand-in plays: no GPU is there, and nothing is sent by it. Gloo does what a job needs done.

    gloo: all ranks have come ── their data is here |── NCCL's stand-in: a collective ──| the gradients are reduced

What else ranks send is small, and takes gloo's time alone. How long a collective takes, and over what a communicator
that is made says that it sends, is told by the scenario of each rank; see `scenario.h`.
"""

from __future__ import annotations

import ctypes
import functools
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ProcessGroupGloo, Work, _create_work_from_future

from support.cuda_standin import DRIVER, NCCL, RUNTIME

__all__ = ["StandInNccl", "register_backend"]

NAME = "stand_in"
# nccl.h: ncclFloat, ncclSum.
FLOAT, SUM = 7, 0


class UniqueId(ctypes.Structure):
    """What all members of a communicator know it by, as NCCL takes it by value."""

    _fields_ = (("internal", ctypes.c_char * 128),)


class StandInNccl:
    """The communicator of this process with all others.

    Args:
        libraries: Folder of the stand-ins.
        scenario: What they play.
        rank: This rank.
        ranks: Of the job.
    """

    def __init__(self, libraries: Path, scenario: Path, rank: int, ranks: int) -> None:
        os.environ["ROOTWALK_CUDA_SCENARIO"] = str(scenario)
        _, self._cuda, self._nccl = (
            ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)
            for name in (DRIVER, RUNTIME, NCCL)
        )
        self._rank, self._ranks, self._made = rank, ranks, 0
        self._communicator = ctypes.c_void_p()
        self._make()

    def make_anew(self) -> None:
        """Give the communicator up and make another one."""
        self._nccl.ncclCommDestroy(self._communicator)
        self._make()

    def reduce(self) -> None:
        """Do a collective, and wait until the device has done it."""
        none = ctypes.c_void_p()
        size = ctypes.c_size_t(1)
        self._nccl.ncclAllReduce(none, none, size, FLOAT, SUM, self._communicator, none)
        self._cuda.cudaStreamSynchronize(none)

    def _make(self) -> None:
        self._made += 1
        known_by = UniqueId(b"gauntlet %d" % self._made)
        place = ctypes.byref(self._communicator)
        self._nccl.ncclCommInitRank(place, self._ranks, known_by, self._rank)


class StandInBackend(Backend):
    """Gloo, whose reductions end when NCCL's stand-in has done its part as well."""

    def __init__(
        self, nccl: StandInNccl, store: Any, rank: int, ranks: int, timeout: timedelta
    ) -> None:
        super().__init__(rank, ranks)
        self._nccl = nccl
        self._gloo: Any = ProcessGroupGloo(store, rank, ranks, timeout=timeout)

    def getBackendName(self) -> str:  # noqa: N802  (PyTorch's name)
        """Return what PyTorch calls it."""
        return NAME

    def allreduce(self, tensors: Any, options: Any) -> Work:
        """Reduce over gloo, then over NCCL."""
        reduced = self._gloo.allreduce(tensors, options).get_future()
        # Gloo's thread may be the last to let go of what it calls: of gloo itself it would wait for its own end.
        then = functools.partial(_reduce_over_nccl, self._nccl)
        return _create_work_from_future(reduced.then(then))

    def broadcast(self, tensors: Any, options: Any) -> Any:
        """Broadcast."""
        return self._gloo.broadcast(tensors, options)

    def allgather(self, outputs: Any, inputs: Any, options: Any) -> Any:
        """Gather."""
        return self._gloo.allgather(outputs, inputs, options)

    def barrier(self, options: Any) -> Any:
        """Wait for each other."""
        return self._gloo.barrier(options)


def _reduce_over_nccl(nccl: StandInNccl, reduced: Any) -> Any:
    nccl.reduce()
    return reduced.value()


def register_backend(nccl: StandInNccl) -> str:
    """Let PyTorch have the backend; return its name."""

    def create(store: Any, rank: int, ranks: int, timeout: timedelta) -> StandInBackend:
        return StandInBackend(nccl, store, rank, ranks, timeout)

    dist.Backend.register_backend(NAME, create, devices=["cpu"])
    return NAME
