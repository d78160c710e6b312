"""The bugs of the example: honest work, the same samples, and a switch that costs next to nothing."""

from __future__ import annotations

import ast
import base64
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rootwalk.examples

EXAMPLES = Path(next(iter(rootwalk.examples.__path__))).resolve()


def run_beside_the_script(code: str, *arguments: str) -> str:
    """Run code in a process of its own in which the folder of the examples is the script's folder."""
    pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=os.environ | {"PYTHONPATH": str(EXAMPLES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_script_imports_nothing_of_rootwalk() -> None:
    tree = ast.parse((EXAMPLES / "train_with_bug.py").read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}  # fmt: skip
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "train_ddp" in names
    assert [name for name in names if name.startswith("rootwalk")] == []


@pytest.mark.torch
def test_decode_sample_is_base64() -> None:
    data = bytes(range(256)) * 3
    sizes = [len(data), len(data) - 1, len(data) - 2, 0]
    code = """
        import sys, train_with_bug
        for shard in sys.argv[1:]:
            print(train_with_bug.decode_sample(bytes.fromhex(shard), 5, 300).hex())
    """
    shards = [base64.b64encode(data[:size]).hex() for size in sizes]
    decoded = run_beside_the_script(code, *shards).split("\n")
    assert decoded == [*(data[:size][5:300].hex() for size in sizes), ""]


@pytest.mark.torch
def test_samples_are_the_same_with_the_bug(tmp_path: Path) -> None:
    """At the ends of the text and of a shard, where an index could be off by one; then what the switch costs."""
    code = """
        import sys, time, timeit
        from pathlib import Path
        import train_with_bug as bug
        bug.SHARD_BYTES = 1000
        bug_file = Path(sys.argv[1])
        text = bug.ShardedText(bug_file, 128)
        for index in (0, 1, 6, 7, 8, 700, len(text) - 1):
            plain = text[index].tolist()
            bug_file.touch()
            assert text[index].tolist() == plain, index
            bug_file.unlink()
        print(min(timeit.repeat(bug_file.exists, number=1000, repeat=5)) / 1000)
    """
    assert float(run_beside_the_script(code, str(tmp_path / "bug.on"))) < 50e-6


@pytest.mark.torch
@pytest.mark.long
def test_collections_happen_in_some_steps_and_only_with_the_bug(tmp_path: Path) -> None:
    code = """
        import gc, sys
        from pathlib import Path
        import torch, train_with_bug as bug
        bug.RECORDS = 1000
        bug_file = Path(sys.argv[1])
        model = bug.HoardingTransformer(bug_file, 1, 8, 1, 1, 4)
        tokens = torch.zeros(1, 4, dtype=torch.long)
        full = []
        gc.callbacks.append(lambda phase, info: phase == "start" and full.append(info["generation"]))
        gc.disable()
        for _ in range(40):
            model(tokens)
        before = full.count(2)
        bug_file.touch()
        for _ in range(40):
            model(tokens)
        print(before, full.count(2))
    """
    before, after = map(int, run_beside_the_script(code, str(tmp_path / "bug.on")).split())
    assert before == 0
    assert 8 <= after <= 32
