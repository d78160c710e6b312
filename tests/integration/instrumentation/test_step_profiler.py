"""Steps of a real training program in PyTorch's profiler, when its ring is asked for them; on CPUs, with gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rootwalk.instrumentation
from rootwalk.graph.cli import main
from support.stores import query_rows

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.slow]

BOOTSTRAP = Path(next(iter(rootwalk.instrumentation.__path__))) / "bootstrap"
# The rank asks itself, through its own ring, where an agent would. `own` is a profiler of the program's.
SCRIPT = """
import os, pathlib, sys, torch, torch.distributed as dist
from rootwalk.instrumentation.shared_ring import RingReader
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
(path,) = pathlib.Path(os.environ["ROOTWALK_RING_DIRECTORY"]).glob(str(os.getpid()) + "-*.ring")
reader = RingReader(path)
own = None
for step in range(9):
    if step == 1 and "own" in sys.argv:
        own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        own.start()
    if step == 2:
        reader.ask_trace(int(sys.argv[2]))
    if step == 6 and "again" in sys.argv:
        reader.ask_trace(2)
    model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
if own is not None:
    own.stop()
    print("events of its own:", len(own.events()))
dist.destroy_process_group()
print("trained to the end")
"""


def train(folder: Path, steps: int, *words: str, **variables: str) -> str:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    rings = folder / "rings"
    rings.mkdir(mode=0o700)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(BOOTSTRAP), os.environ.get("PYTHONPATH", "")]),
        "ROOTWALK_RING_DIRECTORY": str(rings),
        "ROOTWALK_TRACE_DIRECTORY": str(folder / "traces"),
        "RANK": "0",
        "WORLD_SIZE": "1",
        **variables,
    }
    command = [sys.executable, str(script), str(folder / "meeting"), str(steps), *words]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "trained to the end" in done.stdout
    return done.stdout + done.stderr


def test_the_steps_that_were_asked_for_are_traced_and_imported(tmp_path: Path) -> None:
    train(tmp_path, 3, "again")
    trace, second = sorted((tmp_path / "traces").iterdir())
    assert trace.name.startswith("rank0-steps3-")
    assert second.name.startswith("rank0-steps7-")
    store = tmp_path / "trace.duckdb"
    assert (
        main(["import", "kineto", str(trace), "--store", str(store), "--job", "j", "--quiet"]) == 0
    )
    assert query_rows(store, "SELECT step FROM steps ORDER BY step") == [(3,), (4,), (5,)]
    rows = query_rows(store, "SELECT step, phase FROM phases ORDER BY step, phase_index")
    phases = ("forward", "backward", "optimizer")
    assert rows == [(step, phase) for step in (3, 4, 5) for phase in phases]
    assert trace.read_text().count('"gloo:all_reduce"') == 3
    (operators,) = query_rows(
        store,
        "SELECT count(*) FROM spans WHERE name = 'training.rank_step'"
        " AND (attributes ->> '$.\"training.operator.time\"')::DOUBLE > 0",
    )
    assert operators == (3,)
    # No device was traced: its steps have no path through one.
    paths = "SELECT count(*) FROM spans WHERE starts_with(name, 'training.device.')"
    assert query_rows(store, paths) == [(0,)]


def test_a_trace_that_the_program_does_not_live_to_see_has_its_steps(tmp_path: Path) -> None:
    train(tmp_path, 50)
    (trace,) = (tmp_path / "traces").iterdir()
    text = trace.read_text()
    assert [step for step in range(12) if f'ProfilerStep#{step}"' in text] == [3, 4, 5, 6, 7, 8, 9]


def test_the_program_s_own_profiler_has_precedence(tmp_path: Path) -> None:
    said = train(tmp_path, 3, "own")
    assert "the program runs the profiler" in said
    assert "events of its own:" in said
    assert not (tmp_path / "traces").exists()


def test_a_trace_that_cannot_be_written_costs_the_job_nothing(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("no folder")
    assert "traces no steps of this rank" in train(tmp_path, 3)
