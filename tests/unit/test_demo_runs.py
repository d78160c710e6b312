"""The score of the demo runs, and the table of it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / ".ci"))  # where the scripts of that folder find each other


def load_script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DEMO_RUNS = load_script("tests/benchmarks/demo_runs.py")
TABLE = load_script(".ci/generate_result_tables.py")


def make_verdict(*, share_s: float, predicted_s: float, unexplained_s: float) -> dict[str, Any]:
    """A job of 0.2 s a step that takes 0.3 s."""
    finding = {
        "reason": "PY_GC",
        "subject": {"rank": 1, "aggressor": None},
        "seconds": {"share": share_s},
        "confidence": {"band": "high"},
        "onset": {"step": 90},
    }
    return {
        "outcome": "finding",
        "findings": [finding],
        "step_s": 0.3,
        "healthy_step_s": 0.2,
        "predicted_step_s": predicted_s,
        "unexplained_s": unexplained_s,
    }


def make_run(*, is_right: bool = True, **seconds: float) -> dict[str, Any]:
    measured: dict[str, Any] = DEMO_RUNS.measure(make_verdict(**seconds), 0.2, 0.3)
    return {"rank": 1, "is_right": is_right} | measured


def test_ratios_are_to_the_clock_of_the_job() -> None:
    run = make_run(share_s=0.09, predicted_s=0.21, unexplained_s=0.01)
    assert run["share_ratio"] == 0.9
    assert run["predicted_ratio"] == 1.05
    assert run["unexplained_ratio"] == pytest.approx(0.1)
    assert run["found"] == [["PY_GC", 1, None]]


def test_score_counts_what_is_close_over_all_runs() -> None:
    close = make_run(share_s=0.11, predicted_s=0.2, unexplained_s=-0.012)
    far = make_run(is_right=False, share_s=0.05, predicted_s=0.25, unexplained_s=0.05)
    failed = {"rank": 0, "is_right": False, "error": "no verdict"}
    result = DEMO_RUNS.score([close, far, failed])
    assert (result["right"], result["runs"]) == (1, 3)
    assert result["share_ratio"] == {"median": 0.8, "lowest": 0.5, "highest": 1.1, "close": 1}
    assert result["unexplained_ratio"]["close"] == 1
    assert result["bands"] == {"high": 1}
    assert DEMO_RUNS.tell_score("python_gc", result)[0] == "python_gc: right 1 of 3"


def test_a_fault_that_runs_again_replaces_its_runs_and_no_others(tmp_path: Path) -> None:
    output = tmp_path / "runs.json"
    DEMO_RUNS.save({"none": {"score": 1}, "python_gc": {"score": 2}}, output)
    DEMO_RUNS.save({"python_gc": {"score": 3}, "cpu_quota": {"score": 4}}, output)
    saved = json.loads(output.read_text())
    assert saved == {"cpu_quota": {"score": 4}, "python_gc": {"score": 3}, "none": {"score": 1}}
    assert list(saved) == ["cpu_quota", "python_gc", "none"]


def test_table_has_a_row_for_each_fault() -> None:
    place = {"date": "2026-11-21", "machine": "Linux, 2 cores"}
    run = make_run(share_s=0.09, predicted_s=0.21, unexplained_s=0.01)
    report = {
        "python_gc": place | {"score": DEMO_RUNS.score([run, run])},
        "cpu_quota": place | {"score": {"runs": 2, "right": 0}},
        "none": place | {"date": "2026-11-22", "score": {"runs": 3, "right": 2}},
    }
    table = TABLE.generate_runs(report)
    assert (
        "| `python_gc` | 2 of 2 (2 high) | 0.90 (0.90 to 0.90); 2 of 2 "
        "| 1.05 (1.05 to 1.05); 2 of 2 | 10 % (10 % to 10 %); 2 of 2 |\n"
    ) in table
    assert "| `cpu_quota` | 0 of 2 | not told | not told | not told |\n" in table
    assert "| `none` | 2 of 3 healthy | | | |\n" in table
    assert "`python_gc`, `cpu_quota`: 2026-11-21, Linux, 2 cores; `none`: 2026-11-22" in table
