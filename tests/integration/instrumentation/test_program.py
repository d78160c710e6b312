"""Real PyTorch that compiles and evaluates: what the hooks tell of it, read back from the ring."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rootwalk.instrumentation
from rootwalk.instrumentation.shared_ring import Record, RecordKind, RingReader

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.long]

BOOTSTRAP = Path(next(iter(rootwalk.instrumentation.__path__))) / "bootstrap"
# Step 2 has another shape, for which it compiles again, also after a reset; then the model is evaluated, and a teacher
# that stays in evaluation.
PROGRAM = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())
compiled = torch.compile(model, backend="eager", dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
teacher = torch.nn.Linear(4, 4).requires_grad_(False)
for step in range(5):
    if step == 1:
        torch._dynamo.reset()
    compiled(torch.ones(3 if step == 2 else 2, 4)).sum().backward()
    optimizer.step()
    if step == 3:
        teacher.eval()
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 4))
        model.train()
"""


def run(folder: Path) -> list[Record]:
    """Run the program as one rank, and return what its ring holds."""
    rings = folder / "rings"
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join((str(BOOTSTRAP), os.environ.get("PYTHONPATH", ""))),
        ROOTWALK_JOB="test",
        ROOTWALK_RING_DIRECTORY=str(rings),
        ROOTWALK_KEEP_RING="1",
        RANK="0",
        WORLD_SIZE="1",
    )
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=300)
    (path,) = rings.glob("*.ring")
    reader = RingReader(path)
    try:
        return reader.read(10_000)
    finally:
        reader.close()


def test_compilations_and_evaluations_are_told_with_their_steps(tmp_path: Path) -> None:
    records = run(tmp_path)
    compiled = [r.step for r in records if r.kind is RecordKind.COMPILATION]
    # The first one may come before the first phase: then it is of no step.
    assert set(compiled) - {0} == {1, 2}
    phases = [(r.step, r.name) for r in records if r.kind is RecordKind.PHASE]
    assert [step for step, name in phases if name == "evaluation"] == [4]
    assert [step for step, name in phases if name == "backward"] == [0, 1, 2, 3, 4]
    lengths = {
        r.step: r.end_mono_ns - r.start_mono_ns for r in records if r.kind is RecordKind.STEP
    }
    for record in records:
        if record.kind is RecordKind.COMPILATION:
            assert 0 < record.end_mono_ns - record.start_mono_ns <= lengths[record.step]
