"""The real pyroscope-io inside a rank, against a stand-in of Pyroscope's push service."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from support.pyroscope_server import PUSH, pyroscope_server

# A rank that computes in a function for each phase, 150 steps of 20 ms: two blocks of steps.
PROGRAM = """
import sys, time
from rootwalk.instrumentation.runtime import Runtime

def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass

def in_data_load(): spin(0.005)
def in_forward(): spin(0.005)
def in_backward(): spin(0.005)
def in_optimizer(): spin(0.005)

runtime = Runtime()
runtime.learn_identity(3, 4)
for step in range(int(sys.argv[1])):
    for phase, work in (("data_load", in_data_load), ("", in_forward), ("backward", in_backward)):
        begun = bool(phase) and runtime.begin_phase(phase)
        work()
        if begun:
            runtime.end_phase()
    runtime.begin_phase("optimizer")
    in_optimizer()
    runtime.end_optimizer()
print("done", runtime.failure)
"""


def run(folder: Path, steps: int, **variables: str) -> tuple[str, str, float]:
    """Run the rank; return what it said and how long it took to its end."""
    environment = {**os.environ, "ROOTWALK_RING_DIRECTORY": str(folder), "ROOTWALK_JOB": "llama"}
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(steps)],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, done.stderr, time.monotonic() - began_s


def test_samples_have_rank_phase_and_a_bounded_step(tmp_path: Path) -> None:
    pytest.importorskip("pyroscope", reason="pyroscope-io: needs the package")
    with pyroscope_server() as pushed:
        said, complaints, _ = run(tmp_path, 150, ROOTWALK_PYROSCOPE=pushed.address)
    assert (said, complaints) == ("done None\n", "")
    assert set(pushed.paths) == {PUSH}
    for labels, _ in pushed.series:
        assert labels["training_job_id"] == "llama"
        assert labels["training_rank"] == "3"
        assert labels["service_name"]
        assert labels["host_name"]
    assert len({tuple(sorted(labels.items())) for labels, _ in pushed.series}) == 1
    phases: Counter[tuple[str, str]] = Counter()
    blocks = set()
    for _, profiles in pushed.series:
        for profile in profiles:
            for (stack, told, _), value in profile.samples.items():
                names = {function for place in stack for function, _, _ in place.lines}
                (work,) = names & {"in_data_load", "in_forward", "in_backward", "in_optimizer"} or {
                    ""
                }
                phases[work, dict(told).get("training_phase", "")] += value
                blocks.add(dict(told).get("training_step_block", ""))
                assert {key for key, _ in told} <= {"training_phase", "training_step_block"}
    for phase in ("data_load", "forward", "backward", "optimizer"):
        total = sum(value for (work, _), value in phases.items() if work == f"in_{phase}")
        assert total > 0
        assert phases[f"in_{phase}", phase] >= 0.9 * total, phases
    assert {"0", "1"} <= blocks <= {"", "0", "1"}


def test_a_server_that_never_answers_keeps_nobody(tmp_path: Path) -> None:
    pytest.importorskip("pyroscope", reason="pyroscope-io: needs the package")
    with pyroscope_server(answers=False) as pushed:
        said, _, took_s = run(tmp_path, 50, ROOTWALK_PYROSCOPE=pushed.address)
    assert said == "done None\n"
    assert took_s < 15.0


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("localhost:4040", 'saw ROOTWALK_PYROSCOPE="localhost:4040"; needs http:// or https://'),
        ("http://127.0.0.1:1", "pip install 'rootwalk[pyroscope]'"),
    ],
)
def test_what_cannot_be_done_is_said_and_the_job_goes_on(
    tmp_path: Path, address: str, told: str
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "pyroscope.py").write_text("raise ImportError('No module named pyroscope')")
    said, complaints, _ = run(tmp_path, 3, ROOTWALK_PYROSCOPE=address, PYTHONPATH=str(hidden))
    assert said == "done None\n"
    assert "cannot send samples to Pyroscope: " in complaints
    assert told in complaints
