"""Another process on the GPU of the job."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from gauntlet.case import Effect
from rootwalk.graph.commands.demo_faults import Target

SCRIPT = Path(__file__).with_name("gpu_tenant.py")
GRACE_S = 10.0
# Of a busy one: products of two matrices of 8192 x 8192, 1.1 TFLOP each.
LEAST_PRODUCTS = 50


class Tenant:
    """A process that has the first GPU too.

    Args:
        kind: `busy` (it computes all of the time) or `idle` (it only has memory there).
    """

    def __init__(self, kind: str = "busy") -> None:
        self._kind = kind
        self._count = Path()
        self._process: subprocess.Popen[str] | None = None

    def prepare(self, rank: int, folder: Path) -> None:
        """Choose where it counts."""
        self._count = folder / "tenant"

    def options(self) -> list[str]:
        """Nothing in the training code."""
        return []

    def start(self, target: Target) -> None:
        """Start it, and wait until it is there."""
        command = [sys.executable, str(SCRIPT), self._kind, str(self._count)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def effect(self) -> Effect:
        """Return how many products it has made, by its own count; of an idle one whether it is there."""
        if self._kind == "idle":
            is_there = self._process is not None and self._process.poll() is None
            return Effect(float(is_there), "processes there", 1.0)
        products = 0.0
        with contextlib.suppress(FileNotFoundError):  # it has made none
            products = float(self._count.read_text("ascii"))
        return Effect(products, "products of matrices", LEAST_PRODUCTS)

    def stop(self) -> None:
        """End it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._process = None
