"""`rootwalk demo`: real training, a real fault, the right verdict; no fault, no accusation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

import rootwalk.graph
from rootwalk.graph.commands.cpu_limit import CpuLimit, GroupTree, find_group_tree
from rootwalk.instrumentation.errors import UnavailableError
from support.command import processes_mentioning, query, run_rootwalk
from support.machine_speed import MachineSpeed

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.bpf]
# Whatever else runs on the machine is contention too, and is found: one quiet try of two decides. How often the demo
# is right is measured by tests/benchmarks/demo_runs.py, not here.
quiet_machine = pytest.mark.flaky(reruns=1)

# Fewer than a user gets: 60 healthy ones, 40 with the fault.
STEPS = "100"
SCHEMA = Path(next(iter(rootwalk.graph.__path__))) / "verdict-1.schema.json"


@quiet_machine
def test_contention_is_named_with_its_seconds(tmp_path: Path) -> None:
    done = run_rootwalk("demo", "--steps", STEPS, "--json", "v.json", cwd=tmp_path)
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
    assert 0.0 < verdict["cost"]["agent_cpu_ratio"] < 1.0  # how much it is, the benchmarks say
    assert processes_mentioning("noisy-neighbour") == []


@pytest.fixture
def group_tree() -> GroupTree:
    """Where this machine's groups with a CPU limit can be made; skips where they cannot."""
    try:
        tree = find_group_tree()
        CpuLimit.create(tree, 1.0).remove()
    except UnavailableError as error:
        pytest.skip(f"cgroup: {error.reason}")
    return tree


def limited_groups(tree: GroupTree) -> list[Path]:
    return [path for parent in tree.parents() for path in parent.glob("rootwalk-limit-*")]


@pytest.mark.long
@quiet_machine
def test_quota_is_named(tmp_path: Path, group_tree: GroupTree) -> None:
    done = run_rootwalk("demo", "--fault", "cpu_quota", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the verdict is right: rank 1, CPU_QUOTA" in done.stdout
    assert limited_groups(group_tree) == []


@pytest.mark.variant
@quiet_machine
@pytest.mark.parametrize(
    ("fault", "reason"), [("data_loader", "DATALOADER_CPU"), ("python_gc", "PY_GC")]
)
def test_bug_in_the_training_code_is_named(tmp_path: Path, fault: str, reason: str) -> None:
    done = run_rootwalk("demo", "--fault", fault, "--fault-rank", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"the verdict is right: rank 0, {reason}" in done.stdout


@pytest.mark.long
@quiet_machine
def test_hang_is_named_while_it_lasts_and_the_job_is_ended(tmp_path: Path) -> None:
    done = run_rootwalk("demo", "--fault", "hang", "--json", "v.json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the verdict is right: rank 1, NOT_JOINED" in done.stdout
    verdict = json.loads((tmp_path / "v.json").read_text())
    jsonschema.validate(verdict, json.loads(SCHEMA.read_text()))
    assert verdict["kind"] == "hang"
    assert processes_mentioning("train_with_bug.py") == []


@pytest.mark.variant
def test_ctrl_c_leaves_no_limited_group(tmp_path: Path, group_tree: GroupTree) -> None:
    command = [sys.executable, "-m", "rootwalk.graph", "demo", "--fault", "cpu_quota"]
    demo = subprocess.Popen(
        [*command, "--steps", "100"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline_s = time.monotonic() + 120
    while not any((group / "cgroup.procs").read_text() for group in limited_groups(group_tree)):
        assert demo.poll() is None, demo.communicate()[1]
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    demo.send_signal(signal.SIGINT)
    _, stderr = demo.communicate(timeout=120)
    assert demo.returncode == 1, stderr
    assert "cannot judge the demo: the training job ended with" in stderr
    assert limited_groups(group_tree) == []
    assert processes_mentioning(str(tmp_path)) == []


def test_no_right_to_limit_is_told_before_the_training(
    tmp_path: Path, group_tree: GroupTree
) -> None:
    """As in a container: the control groups are there, and can only be read."""
    if os.geteuid() != 0:
        pytest.skip("mount: EPERM")
    mount = f'mount -o remount,bind,ro "{group_tree.mount}" && exec "$@"'
    command = [sys.executable, "-m", "rootwalk.graph", "demo", "--fault", "cpu_quota"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", *command],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot limit a rank's CPU" in done.stderr
    assert "read-only file system" in done.stderr
    assert "hint: run as root" in done.stderr
    assert "training on" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def find_disturbance(folder: Path, speed: MachineSpeed) -> str | None:
    """Return how much slower the machine itself was in the steps that a verdict calls slow; None where it was not."""
    verdict = json.loads((folder / "v.json").read_text())
    warm = "SELECT min(start_unix_ns) AS at FROM spans WHERE name = 'training.rank_step' AND step >= 10"
    (row,) = query(folder / "rootwalk-demo.duckdb", warm, cwd=folder)
    span = verdict["window"]["start_unix_ns"], verdict["window"]["end_unix_ns"]
    work = speed.slowdown(row["at"], *span)
    steps = verdict["step_s"] / verdict["healthy_step_s"] - 1.0
    return f"the same work took {work:.0%} longer, steps {steps:.0%}" if work >= steps else None


@quiet_machine
@pytest.mark.long
def test_no_fault_is_healthy(tmp_path: Path) -> None:
    """What the machine does to a job by itself is no fault of the job's: such a run says nothing, another one does."""
    disturbances = []
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with MachineSpeed() as speed:
            done = run_rootwalk(
                "demo", "--fault", "none", "--steps", "100", "--json", "v.json", cwd=folder
            )
        if done.returncode == 0:
            assert json.loads((folder / "v.json").read_text())["outcome"] == "healthy"
            return
        disturbance = find_disturbance(folder, speed)
        assert disturbance is not None, done.stdout + done.stderr
        disturbances.append(disturbance)
    pytest.skip(f"machine: slower by itself in every run: {'; '.join(disturbances)}")


@pytest.mark.parametrize(
    ("arguments", "saw"),
    [
        (("--fault", "gremlins"), "needs one of"),
        (("--fault-rank", "9", "--ranks", "2"), "needs 0 to 1"),
        (("--steps", "3"), "needs 60 or more"),
        (("--workers", "-1"), "needs 0 or more"),
    ],
)
def test_usage_errors(tmp_path: Path, arguments: tuple[str, ...], saw: str) -> None:
    done = run_rootwalk("demo", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert saw in done.stderr


def test_list(tmp_path: Path) -> None:
    done = run_rootwalk("demo", "--list", cwd=tmp_path)
    assert done.returncode == 0
    names = [line.split()[0] for line in done.stdout.splitlines()]
    bugs = ["data_loader", "python_gc", "python_gil", "blocking_log"]
    assert names == ["cpu_contention", "cpu_quota", *bugs, "none", "hang"]
