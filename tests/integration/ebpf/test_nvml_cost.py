"""What reading 8 GPUs costs, held against a generous bound: `make bench-nvml` has the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.nvml_standin import has_compiler

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "nvml_reader.py"
# Of CPU time, three times what is wanted (20 ms, 1 % of a core): other tests keep the machine busy.
MAX_MS, MAX_CORE_RATIO = 60.0, 0.03


@pytest.mark.skipif(not has_compiler(), reason="needs a C compiler")
def test_eight_gpus_cost_little() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--repeats", "20"],
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert 0.0 < told["all_signals_with_export_ms"] < MAX_MS
    assert 0.0 < told["core_ratio"] < MAX_CORE_RATIO
