"""A diagonal through launchers and ends: each launcher and each end once. `make test-matrix` runs every pair.

`make test-long` runs the pairs in which something of ours is killed, `make test-variants` the others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cells import run_cell
from support.ends import ENDS
from support.launchers import LAUNCHERS

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Pairs that have something to say to each other; the rest of the ends go around.
DIAGONAL = (
    ("torchrun", "sigterm"),
    ("elastic", "normal"),
    ("shell", "crash"),
    ("openmpi", "agent_killed"),
    ("slurm", "ctrl_c"),
    ("opentelemetry", "oom"),
    ("sitecustomize", "clock_back"),
    ("exec_before", "receiver_killed"),
    ("exec_after", "run_killed"),
    ("spawn", "sleep"),
    ("fork", "full_disk"),
    ("spawn", "clock_forward"),
    ("fork", "ctrl_c_twice"),
)
KILLED = (
    ("openmpi", "agent_killed"),
    ("exec_before", "receiver_killed"),
    ("exec_after", "run_killed"),
    ("fork", "ctrl_c_twice"),
)


@pytest.mark.parametrize(
    ("launcher", "end"),
    [
        pytest.param(*pair, marks=pytest.mark.long if pair in KILLED else pytest.mark.variant)
        for pair in DIAGONAL
    ],
)
def test_cell(tmp_path: Path, launcher: str, end: str) -> None:
    run_cell(launcher, end, tmp_path)


def test_diagonal_meets_every_launcher_and_every_end() -> None:
    assert {launcher for launcher, _ in DIAGONAL} == set(LAUNCHERS)
    assert {end for _, end in DIAGONAL} == set(ENDS)
    assert set(KILLED) < set(DIAGONAL)
