"""The cases of the gauntlet are whole; what a harness, a job or a verdict does wrong ends no run but its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)

from gauntlet import __main__ as gauntlet
from gauntlet import job as job_module
from gauntlet.case import Case, Effect, load_cases
from gauntlet.device_cases import DEVICE_CASES, without_nvml
from gauntlet.faults.storage import DiskBug
from gauntlet.gpu_cases import GPU_CASES
from gauntlet.hang import Hang, VerdictError
from gauntlet.job import Run, run_job
from gauntlet.judge import find_word
from gauntlet.neighbours import is_stranger
from gauntlet.results import add_run, describe_machine, read_runs
from gauntlet.workloads import DDP
from rootwalk.graph.commands.demo_faults import Target
from rootwalk.graph.reasons.contract import CONTRACT
from rootwalk.instrumentation.errors import RootwalkError
from support.gauntlet_runs import (
    ENOUGH,
    FAULT,
    HANG,
    make_hang,
    make_run,
    make_verdict,
)


def test_every_case_says_what_is_done_and_what_it_must_not_be_taken_for() -> None:
    cases = load_cases()
    for name, case in cases.items():
        assert case.text, name
        assert case.looks_like, name
        assert bool(case.truth.reasons) == case.is_fault, name
        assert (case.disturbance is None) == (name.startswith(("healthy", "hang"))), name
        assert name.startswith("near") == (not case.is_fault and case.disturbance is not None), name
    assert sum(case.is_quick for case in cases.values()) >= 5


def test_layers_of_every_truth_are_those_of_its_reasons() -> None:
    for name, case in (load_cases() | DEVICE_CASES | GPU_CASES).items():
        for truth in (case.truth, case.also):
            if truth is not None:
                layers = {CONTRACT[reason][0] for reason in truth.reasons}
                assert layers == set(truth.layers), name
        assert set(case.may_say) <= CONTRACT.keys(), name


def test_a_bug_of_all_ranks_on_a_disk_is_theirs(tmp_path: Path) -> None:
    case = load_cases()["near_checkpoint_all"]
    assert case.disturbance is not None
    disk = case.disturbance()
    assert isinstance(disk, DiskBug)
    assert (disk._who, disk.settings) == ("all", {"bytes": 4_000_000, "every": 10})


def test_every_device_case_is_a_stand_in_and_has_its_near_misses() -> None:
    for name, case in DEVICE_CASES.items():
        assert case.text.startswith("stand-in: "), name
        assert case.disturbance is not None, name
        blind = without_nvml(case)
        assert (blind is None) == (case.truth.layers != ("device",)), name
        # Stacks tell a device that hangs without NVML as well.
        is_told_by_nvml = case.truth.reasons != ("GPU_HANG",)
        assert blind is None or (blind.truth.reasons != case.truth.reasons) == is_told_by_nvml, name
    said = [name.removeprefix("device_near_") for name in DEVICE_CASES if "_near_" in name]
    assert len(said) >= 8
    assert {f"device_{one}" for one in said} <= DEVICE_CASES.keys()
    assert {f"device_host_{one}" for one in said} <= DEVICE_CASES.keys()
    assert {"device_packets_nvlinks", "device_packets_alone"} <= DEVICE_CASES.keys()


def test_only_cases_of_a_gpu_may_use_one() -> None:
    assert all(case.workload.is_on_gpu for case in GPU_CASES.values())
    others = (load_cases() | DEVICE_CASES).values()
    assert not any(case.workload.is_on_gpu for case in others)


def test_a_case_of_a_gpu_is_not_run_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", find_none)
    row = gauntlet.run_once("gpu_cotenant", GPU_CASES["gpu_cotenant"], 1, "all sensors", None)
    assert "needs an NVIDIA GPU and its driver" in row["not_run"]


@pytest.mark.parametrize(("is_on_gpu", "shown"), [(True, "0"), (False, "")])
def test_gpus_are_hidden_from_jobs_that_may_not_use_one(
    is_on_gpu: bool, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    words = [sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], end='')"]
    monkeypatch.setattr(job_module, "build_command", lambda *_: words)
    case = replace(FAULT, workload=replace(DDP, is_on_gpu=is_on_gpu))
    assert job_module.start_job(case, None, tmp_path, ()).wait() == 0
    assert (tmp_path / "output.txt").read_text() == shown


RIGHT: dict[str, Any] = {"top1": True, "found": [], "outcome": "finding", "rank": 1, "run_s": 1.0}
WRONG = RIGHT | {"top1": False}
INVALID = WRONG | {"invalid": "took no effect"}


@pytest.mark.parametrize(
    ("before", "runs", "code"),
    [
        ([RIGHT], [RIGHT], 0),
        ([RIGHT], [WRONG, RIGHT], 0),
        ([RIGHT], [WRONG, WRONG], 1),
        ([RIGHT], [WRONG, INVALID], 0),  # the second says nothing of the verdict
        ([RIGHT], [INVALID, INVALID], 0),
        ([WRONG], [], 0),  # it was never right: not run
        ([], [], 0),
    ],
)
def test_quick_cases_fail_when_one_is_wrong_twice_that_was_right_before(
    before: list[dict[str, Any]],
    runs: list[dict[str, Any]],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = iter(runs)
    monkeypatch.setattr(
        gauntlet, "read_runs", lambda _: [run | {"variant": "all sensors"} for run in before]
    )
    monkeypatch.setattr(gauntlet, "run_once", lambda *_: next(left))
    assert gauntlet.check_quick({"a_case": FAULT}) == code
    assert next(left, None) is None


def run_once(case: Case, variant: str = "all sensors", keep: Path | None = None) -> dict[str, Any]:
    return gauntlet.run_once("a_case", case, 1, variant, keep)


def test_a_run_that_counts_and_has_no_verdict_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauntlet, "run_job", lambda *_: make_run())
    row = run_once(FAULT, keep=tmp_path / "kept")
    assert (row["invalid"], row["outcome"], row["found"]) == (None, "no verdict", [])
    assert (row["top1"], row["top3"], row["blamed"], row["wrong"]) == (False, False, 0, 0)
    assert "WRONG" in gauntlet.tell("a_case", row)
    assert find_word(row | {"variant": "without bpf"}) == "wrong"
    assert len(list((tmp_path / "kept").iterdir())) == 1
    monkeypatch.setattr(gauntlet, "run_job", lambda *_: make_run(added=0.0))
    assert "cost the job" in run_once(FAULT)["invalid"]


def test_dumps_that_cannot_be_diagnosed_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise VerdictError("cannot import the dumps: saw a list")

    monkeypatch.setattr(gauntlet, "run_hang", lambda *_: Hang(1.0, {0: 15}, (0,)))
    monkeypatch.setattr(gauntlet, "diagnose_dumps", fail)
    row = run_once(HANG)
    assert (row["invalid"], row["outcome"], row["top1"]) == (None, "no verdict", False)
    assert "saw a list" in row["error"]
    assert row["named_s"] is None


def test_of_a_hang_it_is_told_how_long_after_the_bug_it_was_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun_s = time.time() - 17.0
    verdict = make_verdict(make_hang("RANK_GONE", 1))
    monkeypatch.setattr(gauntlet, "run_hang", lambda *_: Hang(begun_s, {0: 15}, (0,)))
    monkeypatch.setattr(gauntlet, "diagnose_dumps", lambda _: verdict)
    assert run_once(HANG)["named_s"] == pytest.approx(17.0, abs=5.0)
    verdict = make_verdict(make_hang("RANK_GONE", 0))
    assert run_once(HANG)["named_s"] is None


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        subprocess.CalledProcessError(1, "mkfs.ext4"),
        statistics.StatisticsError("no steps"),
    ],
)
@pytest.mark.parametrize("case", [FAULT, HANG])
def test_an_error_of_the_harness_is_an_invalid_run_and_the_next_one_is_made(
    case: Case, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(gauntlet, "run_job", fail)
    monkeypatch.setattr(gauntlet, "run_hang", fail)
    monkeypatch.setattr(gauntlet, "await_quiet", lambda _: None)
    options = Namespace(variant="all sensors", results=tmp_path, keep=None, wait_s=0.0)
    gauntlet.bring_to("a_case", case, 1, options)
    rows = read_runs("a_case", tmp_path)
    assert [row["invalid"] for row in rows] == [f"harness: {error}"] * (gauntlet.MAX_REPEATS + 1)


@pytest.mark.parametrize(
    ("here", "made"),
    [({}, 0), ({"date": "2020-01-01"}, 1), ({"machine": "1 core, Linux 1"}, 1)],
)
def test_what_cannot_be_had_is_tried_again_on_another_day_or_machine(
    here: dict[str, str], made: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = {"variant": "all sensors"}
    add_run("a_case", variant | {"not_run": "no swap"} | describe_machine() | here, tmp_path)
    monkeypatch.setattr(gauntlet, "await_quiet", lambda _: None)
    monkeypatch.setattr(gauntlet, "run_once", lambda *_: RIGHT | variant)
    options = Namespace(variant="all sensors", results=tmp_path, keep=None, wait_s=0.0)
    gauntlet.bring_to("a_case", FAULT, 1, options)
    assert len(read_runs("a_case", tmp_path)) == 1 + made


def test_a_hang_that_nobody_watches_has_no_sensor_to_take_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gauntlet, "hang_once", lambda *_: {"top1": True})
    for variant in ("all sensors", "without nvml"):
        assert run_once(HANG, variant)["top1"]
    for variant in ("without bpf", "without instrumentation"):
        assert run_once(HANG, variant)["not_run"].startswith("nobody watches this job live")
        assert run_once(replace(HANG, profile_hz=19), variant)["top1"]


# A job whose step logs are there, and which ends as it is told.
PLAYED_JOB = "import sys, time; time.sleep(float(sys.argv[1])); sys.exit(int(sys.argv[2]))"
TWENTY_STEPS = replace(FAULT, workload=replace(DDP, steps=20))


def play_job(
    case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int, wait_s: float, code: int
) -> Run:
    (folder / "steps").mkdir()
    entries = [json.dumps({"step": step, "seconds": 0.1}) + "\n" for step in range(steps)]
    for rank in (0, 1):
        (folder / "steps" / f"rank{rank}.jsonl").write_text("".join(entries))
    words = [sys.executable, "-c", PLAYED_JOB, str(wait_s), str(code)]
    monkeypatch.setattr(job_module, "build_command", lambda *_: words)
    return run_job(case, 1, folder, (), max_cores=float("inf"))


def test_a_job_that_did_all_its_steps_counts_however_its_watcher_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = play_job(TWENTY_STEPS, tmp_path, monkeypatch, 20, 0.0, 3)
    assert run.times.healthy_s == 0.1


def test_a_watcher_that_does_not_end_has_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "JOB_DEADLINE_S", 1.0)
    (tmp_path / "verdict.json").write_text("{}")
    run = play_job(TWENTY_STEPS, tmp_path, monkeypatch, 20, 60.0, 0)
    assert run.times.healthy_s == 0.1
    assert not (tmp_path / "verdict.json").exists()


@pytest.mark.parametrize(("wait_s", "words"), [(0.0, "ended with 3"), (60.0, "took more than 1 s")])
def test_a_job_that_did_not_do_all_its_steps_cannot_be_judged(
    wait_s: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "JOB_DEADLINE_S", 1.0)
    with pytest.raises(RootwalkError, match=words):
        play_job(TWENTY_STEPS, tmp_path, monkeypatch, 19, wait_s, 3)


def test_a_job_that_may_fail_counts_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = replace(TWENTY_STEPS, may_fail=True)
    assert play_job(case, tmp_path, monkeypatch, 19, 0.0, 3).times.healthy_s == 0.1


class SlowStart:
    """A disturbance whose start takes a while: three more steps are done meanwhile."""

    def __init__(self, log: Path) -> None:
        self._log, self.began_s = log, 0.0

    def prepare(self, rank: int, folder: Path) -> None: ...

    def options(self) -> list[str]:
        return []

    def start(self, target: Target) -> None:
        self.began_s = time.time()
        with self._log.open("a", encoding="utf-8") as log:
            log.write("\n" * 3)

    def effect(self) -> Effect:
        return ENOUGH

    def stop(self) -> None: ...


def test_the_onset_is_before_the_start_in_time_and_after_it_in_steps(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.jsonl").write_text((json.dumps({"pid": 1}) + "\n") * 15)
    disturbance = SlowStart(tmp_path / "rank0.jsonl")
    progress = job_module.Progress()
    for _ in range(2):  # it begins once
        job_module.follow(TWENTY_STEPS, disturbance, 1, tmp_path, progress)
    assert progress.onset_step == 18
    assert progress.begun_unix_s is not None
    assert progress.begun_unix_s <= disturbance.began_s


def test_threads_of_the_kernel_are_no_strangers() -> None:
    parents = {1: 0, 2: 0, 15: 2, 300: 1, 301: 300}
    assert [pid for pid in parents if is_stranger(pid, parents)] == [1, 300, 301]
    # In a container of processes 2 is one like others.
    assert is_stranger(15, parents | {2: 1})
