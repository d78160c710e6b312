"""The demo's judgement and its faults, without training anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph.commands import demo_truth
from rootwalk.graph.commands.demo_faults import FAULTS, Target, Truth
from rootwalk.graph.commands.demo_hang import find_hang_differences
from rootwalk.graph.commands.demo_job import COLD_STEPS, StepTimes, read_step_times
from rootwalk.graph.commands.demo_truth import describe_load, find_differences, judge


def make_finding(reason: str = "CPU_CONTENTION", **subject: Any) -> dict[str, Any]:
    return {
        "reason": reason,
        "layer": "operating_system",
        "subject": {"rank": 1, "aggressor": {"pid": 9, "name": "noisy"}} | subject,
        "seconds": {"share": 0.18},
        "predicted_step_s": 0.21,
    }


CONTENTION = Truth("CPU_CONTENTION", "operating_system", 9, "noisy")
SLOWER = StepTimes(0.200, 0.390, 90)


def test_the_same_is_no_difference() -> None:
    assert find_differences(make_finding(), 1, CONTENTION) == []


@pytest.mark.parametrize(
    ("truth", "rank", "wrong"),
    [
        (Truth("PY_GC", "operating_system"), 1, ["reason CPU_CONTENTION, not PY_GC"]),
        (Truth("CPU_CONTENTION", "job"), 1, ["layer operating_system, not job"]),
        (CONTENTION, 0, ["rank 1, not 0"]),
        (Truth("CPU_CONTENTION", "operating_system", 8, "noisy"), 1, ["pid 9, not 8"]),
        (Truth("CPU_CONTENTION", "operating_system", 9, "hog"), 1, ["name noisy, not hog"]),
    ],
)
def test_every_part_counts(truth: Truth, rank: int, wrong: list[str]) -> None:
    assert find_differences(make_finding(), rank, truth) == wrong


def test_no_aggressor_differs() -> None:
    found = make_finding(aggressor=None)
    assert find_differences(found, 1, CONTENTION) == ["pid None, not 9", "name None, not noisy"]


def test_the_injected_fault_may_be_one_of_several_causes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = make_finding(aggressor={"pid": 77, "name": "go"})
    verdict = {"outcome": "finding", "findings": [other, make_finding()]}
    assert judge(verdict, SLOWER, 1, CONTENTION) == 0
    said = capsys.readouterr().out
    assert "the verdict is right: rank 1, CPU_CONTENTION, pid 9 as cause 2 of 2" in said
    assert "also found, not part of the demo: CPU_CONTENTION rank 1 'go' pid 77" in said


def test_other_causes_alone_are_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = {"outcome": "finding", "findings": [make_finding("PY_GC", aggressor=None)]}
    assert judge(verdict, SLOWER, 1, CONTENTION) == 1
    assert "is WRONG: reason PY_GC, not CPU_CONTENTION" in capsys.readouterr().out


def test_a_busy_machine_is_described(tmp_path: Path) -> None:
    def write(ticks: int) -> None:
        folder = tmp_path / "4242"
        folder.mkdir(exist_ok=True)
        rest = " ".join(["S", *["0"] * 10, str(ticks), "0", *["0"] * 30])
        (folder / "stat").write_text(f"4242 (a (b) c) {rest}", encoding="utf-8")

    write(100)
    ticks = round(0.8 * demo_truth.LOAD_S / demo_truth._TICK_S)
    said = describe_load(tmp_path, lambda _: write(100 + ticks))
    assert said is not None
    assert "other processes use 0.8 of" in said
    assert "'a (b) c' (pid 4242, 0.8)" in said
    assert describe_load(tmp_path, lambda _: None) is None


def make_hang(**changes: Any) -> dict[str, Any]:
    finding = {
        "kind": "hang",
        "reason": "NOT_JOINED",
        "subject": {"rank": 1, "ranks": [1]},
        "chain": [{"text": "rank 1 has not called all_reduce"}],
    }
    frames = ["get (queue.py:171)", "wait_for_answer (train_with_bug.py:145)"]
    groups = [{"ranks": [1], "frames": frames}]
    verdict = {"outcome": "finding", "findings": [finding | changes], "hang": None}
    return verdict | {"hang": {"stack_groups": groups}}


def test_hang_that_is_named_in_time_with_its_function_is_no_difference() -> None:
    assert find_hang_differences(make_hang(), 1, 14.0) == []


@pytest.mark.parametrize(
    ("verdict", "after_s", "wrong"),
    [
        (make_hang(), None, "nothing was said while the job hung"),
        (make_hang(), 31.0, "the hang was named after 31 s, not within 30 s"),
        (make_hang(kind="slow"), 14.0, "kind slow, not hang"),
        (make_hang(reason="RANK_GONE"), 14.0, "reason RANK_GONE, not NOT_JOINED"),
        (make_hang(subject={"ranks": [0]}), 14.0, "ranks [0], not [1]"),
        (make_hang() | {"hang": None}, 14.0, "wait_for_answer is not named"),
        ({"outcome": "healthy", "findings": []}, 14.0, "outcome healthy"),
    ],
)
def test_every_part_of_a_hang_counts(
    verdict: dict[str, Any], after_s: float | None, wrong: str
) -> None:
    assert find_hang_differences(verdict, 1, after_s) == [wrong]


def write_log(folder: Path, rank: int, seconds: dict[int, float]) -> None:
    lines = [json.dumps({"step": step, "seconds": value}) for step, value in seconds.items()]
    (folder / f"rank{rank}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_truth_is_the_mean_of_all_steps_after_the_onset(tmp_path: Path) -> None:
    """Steps of 0.1 s; the fault begins in step 20 and lengthens every other step after it by 0.2 s, on rank 1 only."""
    steps = range(40)
    slow = {step: 0.3 if step > 20 and step % 2 == 0 else 0.1 for step in steps}
    write_log(tmp_path, 0, dict.fromkeys(steps, 0.1) | {COLD_STEPS - 1: 5.0, 20: 0.2})
    write_log(tmp_path, 1, slow)
    times = read_step_times(tmp_path, 20)
    assert times.healthy_s == pytest.approx(0.1)
    # Steps 21 to 39: nineteen, of which 22, 24 … 38 are slow.
    assert times.faulty_s == pytest.approx((9 * 0.3 + 10 * 0.1) / 19)
    assert times.onset_step == 21
    assert read_step_times(tmp_path, None).faulty_s is None


def test_truth_is_how_long_the_job_takes_not_the_longest_rank_of_each_step(tmp_path: Path) -> None:
    """Now the one rank ends a step 0.05 s later than the other, now the other: nobody waits for that."""
    steps = range(40)
    write_log(tmp_path, 0, {step: 0.25 if step % 2 else 0.15 for step in steps})
    write_log(tmp_path, 1, {step: 0.15 if step % 2 else 0.25 for step in steps})
    times = read_step_times(tmp_path, 19)
    assert times.faulty_s == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("name", "reason"), [("data_loader", "DATALOADER_CPU"), ("python_gc", "PY_GC")]
)
def test_bug_is_on_while_its_file_exists(tmp_path: Path, name: str, reason: str) -> None:
    _, make_fault = FAULTS[name]
    assert make_fault is not None
    fault = make_fault()
    fault.prepare(1, tmp_path)
    script, *options = fault.script()
    assert script == "train_with_bug.py"
    switch = Path(options[options.index("--bug-file") + 1])
    assert options[options.index("--bug-rank") + 1] == "1"
    assert not switch.exists()
    fault.start(Target(rank=1, pid=4, core=0))
    assert switch.exists()
    assert "rank 1" in fault.describe()
    assert fault.truth() == Truth(reason, "application")
    fault.stop()
    fault.stop()
    assert not switch.exists()


@pytest.mark.parametrize("name", [name for name, (_, make) in FAULTS.items() if make])
def test_stop_without_start(name: str) -> None:
    _, make_fault = FAULTS[name]
    assert make_fault is not None
    make_fault().stop()


@pytest.mark.parametrize(
    ("faulty_s", "words"), [(0.204, "took no effect on this machine"), (0.390, "is WRONG")]
)
def test_a_fault_that_cost_nothing_makes_healthy_right(
    faulty_s: float, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = {"outcome": "healthy", "findings": []}
    assert judge(healthy, StepTimes(0.200, faulty_s, 90), 1, CONTENTION) == 1
    assert words in capsys.readouterr().out
