"""`rootwalk demo`: real training, a real fault, the right verdict; no fault, no accusation."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import rootwalk.graph
from support.command import processes_mentioning, query, run_rootwalk

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.bpf]
# Whatever else runs on the machine is contention too, and is found: one quiet try of two decides. How often the demo
# is right is measured by tests/benchmarks/demo_runs.py, not here.
quiet_machine = pytest.mark.flaky(reruns=1)

SCHEMA = Path(next(iter(rootwalk.graph.__path__))) / "verdict-1.schema.json"


@quiet_machine
def test_contention_is_named_with_its_seconds(tmp_path: Path) -> None:
    done = run_rootwalk("demo", "--json", "v.json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads((tmp_path / "v.json").read_text())
    jsonschema.validate(verdict, json.loads(SCHEMA.read_text()))
    first_line = next(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert "CPU contention by 'noisy-neighbour'" in first_line
    assert "the verdict is right" in done.stdout
    (finding, *_) = verdict["findings"]
    slowdown_s = verdict["step_s"] - verdict["healthy_step_s"]
    assert abs(verdict["unexplained_s"]) <= 0.25 * slowdown_s
    assert finding["seconds"]["share"] == pytest.approx(slowdown_s, rel=0.3)
    links = [(link["node"], link["edge"]) for link in finding["chain"]]
    assert [kind for _, kind in links] == ["slowed_by", "waits_for", "runnable", "contends_with"]
    rows = query(
        tmp_path / "rootwalk-demo.duckdb", "SELECT source_id, kind FROM edges", cwd=tmp_path
    )
    assert set(links) <= {(row["source_id"], row["kind"]) for row in rows}
    assert verdict["cost"]["agent_cpu_ratio"] < 0.05
    assert processes_mentioning("noisy-neighbour") == []


@quiet_machine
def test_no_fault_is_healthy(tmp_path: Path) -> None:
    done = run_rootwalk(
        "demo", "--fault", "none", "--steps", "100", "--json", "v.json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "v.json").read_text())["outcome"] == "healthy"


@pytest.mark.parametrize(
    ("arguments", "saw"),
    [
        (("--fault", "gremlins"), "needs one of"),
        (("--fault-rank", "9", "--ranks", "2"), "needs 0 to 1"),
        (("--steps", "3"), "needs 60 or more"),
    ],
)
def test_usage_errors(tmp_path: Path, arguments: tuple[str, ...], saw: str) -> None:
    done = run_rootwalk("demo", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert saw in done.stderr


def test_list(tmp_path: Path) -> None:
    done = run_rootwalk("demo", "--list", cwd=tmp_path)
    assert done.returncode == 0
    assert "cpu_contention" in done.stdout
