"""Real training, a real bug, stacks: the function that has the bug is the first one that the verdict names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.command import query, run_rootwalk

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.bpf, pytest.mark.variant]

FRAME = "profile.frame."
# Reason, kind of time, and the function of `train_with_bug.py` that has the bug: what it calls in C has no name of its
# own in Python's stacks.
BUGS = {
    "python_gc": ("PY_GC", "on_cpu", "HoardingTransformer.forward"),
    "python_gil": ("PY_GIL", "on_cpu", "count_pairs"),
    "data_loader": ("DATALOADER_CPU", "on_cpu", "decode_sample"),
    "blocking_log": ("BLOCKING_LOG", "off_cpu", "log_weights"),
}


# Whatever else runs on the machine is a cause too, and is found.
@pytest.mark.flaky(reruns=1)
@pytest.mark.parametrize("bug", BUGS)
def test_the_function_with_the_bug_is_named_first(tmp_path: Path, bug: str) -> None:
    reason, kind, function = BUGS[bug]
    options = ["--fault", bug, "--fault-rank", "0", "--profile-hz", "49", "--json", "v.json"]
    done = run_rootwalk("demo", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"the verdict is right: rank 0, {reason}" in done.stdout
    finding: dict[str, Any] = json.loads((tmp_path / "v.json").read_text())["findings"][0]
    frames = [row for row in finding["evidence"] if row["signal"].startswith(FRAME)]
    assert frames, done.stdout
    assert frames[0]["signal"].startswith(f"{FRAME}{kind}: "), frames
    assert function in frames[0]["signal"], frames
    assert frames[0]["value"] > 2 * (frames[0]["peers"] or 0.0)
    store = tmp_path / "rootwalk-demo.duckdb"
    assert query(store, frames[0]["query"], cwd=tmp_path)
