"""How real jobs under `rootwalk run` end: the first line says which rank failed first, and how."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.command import run_rootwalk

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """
import os, signal, sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    if step == 20 and rank == 1:
        if sys.argv[1] == "raise":
            raise ValueError("private words")
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] == "exit":
            sys.exit(3)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def run(folder: Path, *command: str) -> tuple[int, str, dict[str, Any]]:
    """Run a command under observation; return its exit code, the verdict's text and the verdict."""
    options = ("--job", "ends", "--store", "s.duckdb", "--json", "verdict.json")
    done = run_rootwalk("run", *options, "--", *command, cwd=folder)
    return done.returncode, done.stdout, json.loads((folder / "verdict.json").read_text())


@pytest.mark.long
@pytest.mark.parametrize("how", ["raise", "kill", "exit"])
def test_rank_that_fails_is_named(tmp_path: Path, how: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    code, _, verdict = run(tmp_path, *launcher, str(script), how)
    assert code == 1
    assert verdict["outcome"] != "healthy"
    assert verdict["end"]["exit_code"] is not None or verdict["end"]["signal"] is not None
    assert verdict["end"]["text"].startswith("job failed after step ")
    assert "private words" not in json.dumps(verdict)
    if any(item["sensor"] == "lifecycle" for item in verdict["missing_sensors"]):
        return  # which rank was the first is known to the kernel alone
    assert verdict["end"]["rank"] == 1
    finding = verdict["findings"][-1]  # what made steps slow on this machine comes before
    assert (finding["reason"], finding["subject"]["rank"]) == ("RANK_CRASHED", 1)


@pytest.mark.parametrize(
    ("name", "code"), [("missing_module.py", 1), ("no_such_script.py", 2)], ids=["module", "script"]
)
def test_command_that_never_trains(tmp_path: Path, name: str, code: int) -> None:
    (tmp_path / "missing_module.py").write_text("import no_such_module\n")
    exit_code, text, verdict = run(tmp_path, sys.executable, str(tmp_path / name))
    assert exit_code == code
    assert text.startswith(f"the command failed before its first step (exit code {code})")
    assert verdict["outcome"] != "healthy"
    assert verdict["end"]["last_step"] is None
