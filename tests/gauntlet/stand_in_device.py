"""A rank's device that a stand-in plays: no GPU is there. Time passes in the libraries of tests/cuda_standin.

What it takes for a kernel, a copy or a wait is told by a scenario, a text file a rank, which may change meanwhile.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

KERNELS, COPIED_BYTES, TO_DEVICE = 20, 1 << 20, 1
PEER = 1


class Dim3(ctypes.Structure):
    """Three sizes, as CUDA's launches take them by value."""

    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


def play(scenario: Path, *lines: str) -> None:
    """Put a scenario in its place, as a whole; see `scenario.h`."""
    new = scenario.with_name(f"{scenario.name}.new")
    new.write_text("\n".join(["start 0", *lines]) + "\n", encoding="ascii")
    new.replace(scenario)


class StandInDevice:
    """The device of this process.

    Args:
        runtime: The stand-in of the CUDA runtime.
        scenario: What it plays.
        transfers: Whether it also sends something to another device.
    """

    def __init__(self, runtime: str, scenario: Path, *, transfers: bool = False) -> None:
        os.environ["ROOTWALK_CUDA_SCENARIO"] = str(scenario)
        self._cuda = ctypes.CDLL(runtime)
        self._from = ctypes.create_string_buffer(COPIED_BYTES)
        self._one = Dim3(1, 1, 1)
        self._transfers = transfers

    def work(self) -> None:
        """Give it a copy, kernels and maybe a transfer, and wait for it."""
        size, none = ctypes.c_size_t(COPIED_BYTES), ctypes.c_size_t(0)
        self._cuda.cudaMemcpyAsync(None, self._from, size, TO_DEVICE, None)
        for _ in range(KERNELS):
            self._cuda.cudaLaunchKernel(None, self._one, self._one, None, none, None)
        if self._transfers:
            self._cuda.cudaMemcpyPeerAsync(self._from, PEER, self._from, 0, size, None)
        self._cuda.cudaStreamSynchronize(None)
