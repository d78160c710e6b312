"""What reading 8 GPUs costs, in fixed pieces of work: `make bench-nvml` has the milliseconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.nvml_standin import has_compiler

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "nvml_reader.py"
# Pieces are 20,000 multiplications in Python: all signals take 8 of them, and the looks of a second 3.
MAX_PIECES, MAX_PIECES_PER_S = 20.0, 8.0


@pytest.mark.skipif(not has_compiler(), reason="needs a C compiler")
def test_eight_gpus_cost_little() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--repeats", "20"],
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    piece_ms = told["fixed_work_ms"]
    assert 0.0 < told["all_signals_with_export_ms"] < MAX_PIECES * piece_ms
    assert 0.0 < told["core_ratio"] * 1e3 < MAX_PIECES_PER_S * piece_ms
