"""What a near miss costs, by steps that are neighbours: it is switched off and on in a job, and every one can be."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)

import torch

from gauntlet import job as job_module
from gauntlet.alternation import (
    ALTERNATING_STEPS,
    BLOCK_STEPS,
    Switch,
    compare_blocks,
    find_cost,
    plan,
)
from gauntlet.buggy_training import ALL_BUGS
from gauntlet.case import ACCUSE_NOBODY, CanPause, Case, Effect, load_cases
from gauntlet.faults.places import BusyAgent, SharedCore
from gauntlet.faults.processes import Hogs, cpu_seconds
from gauntlet.faults.signals import DutyCycle
from gauntlet.faults.training import TrainingBug
from gauntlet.workloads import DDP
from rootwalk.graph.commands.demo_faults import Target
from rootwalk.instrumentation.errors import RootwalkError
from support.gauntlet_runs import ENOUGH

# As a job of 0.1 s a step is switched: the step in which it was is in no block.
SWITCHES = [
    Switch(bool(number % 2), done, done)
    for number, done in enumerate(range(90, 190, BLOCK_STEPS + 1))
]


def make_steps(cost: float, slow: dict[int, float] | None = None) -> list[float]:
    """Return steps of 0.1 s, s, on a machine that becomes slower, with what a near miss costs while it is there."""
    noise = random.Random(1)  # noqa: S311
    step_s = [0.1 * (1 + 0.002 * number) * (1 + noise.gauss(0, 0.02)) for number in range(190)]
    for switch in SWITCHES:
        if switch.is_on:
            for number in range(switch.after, min(switch.after + BLOCK_STEPS + 1, 190)):
                step_s[number] *= 1 + cost
    for number, longer in (slow or {}).items():
        step_s[number] *= longer
    return step_s


@pytest.mark.parametrize("cost", [0.0, 0.04, 0.06, 0.3])
def test_the_cost_is_found_on_a_machine_that_becomes_slower(cost: float) -> None:
    """Its last steps take 38 % longer than its first, whatever was switched."""
    assert compare_blocks(make_steps(cost), SWITCHES) == pytest.approx(cost, abs=0.012)


def test_steps_in_which_it_was_switched_do_not_count() -> None:
    slow = {switch.after: 10.0 for switch in SWITCHES}
    assert compare_blocks(make_steps(0.0, slow), SWITCHES) == pytest.approx(0.0, abs=0.012)


def test_a_machine_that_hiccups_costs_a_near_miss_nothing() -> None:
    slow = dict.fromkeys((112, 113, 114, 147, 182), 5.0)
    assert compare_blocks(make_steps(0.0, slow), SWITCHES) == pytest.approx(0.0, abs=0.02)


def test_the_rank_that_it_costs_most_counts(tmp_path: Path) -> None:
    for rank, cost in ((0, 0.0), (1, 0.1)):
        lines = [json.dumps({"seconds": seconds}) for seconds in make_steps(cost)]
        (tmp_path / f"rank{rank}.jsonl").write_text("\n".join(lines))
    assert find_cost(tmp_path, SWITCHES) == pytest.approx(0.1, abs=0.012)


def test_too_few_blocks_say_nothing() -> None:
    with pytest.raises(RootwalkError, match="saw 4 blocks of steps"):
        compare_blocks(make_steps(0.0), SWITCHES[:7])


NEAR_MISSES = {name: case for name, case in load_cases().items() if case.costs_nothing}


@pytest.mark.parametrize("case", NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_every_near_miss_that_may_cost_nothing_is_weighed(case: Case) -> None:
    assert case.disturbance is not None
    schedule = plan(case, case.disturbance())
    assert schedule.alternates is not None
    assert schedule.steps - schedule.alternates == ALTERNATING_STEPS
    assert 0 < schedule.onset < schedule.alternates


def test_a_fault_and_what_costs_all_ranks_the_same_stay() -> None:
    cases = load_cases()
    for name in ("cpu_hog", "near_work_all", "healthy_ddp"):
        made = cases[name].disturbance
        assert plan(cases[name], None if made is None else made()).alternates is None


class Counting:
    """A disturbance that says when it was switched."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def prepare(self, rank: int, folder: Path) -> None: ...

    def options(self) -> list[str]:
        return []

    def start(self, target: Target) -> None:
        self.said.append("start")

    def pause(self) -> None:
        self.said.append("pause")

    def resume(self) -> None:
        self.said.append("resume")

    def effect(self) -> Effect:
        return ENOUGH

    def stop(self) -> None: ...


def test_a_job_is_disturbed_for_a_while_and_then_off_and_on(tmp_path: Path) -> None:
    case = Case("a near miss", ACCUSE_NOBODY, Counting, workload=replace(DDP, steps=140))
    disturbance, progress = Counting(), job_module.Progress()
    done = {}
    for number in range(200):
        with (tmp_path / "rank0.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps({"pid": 1, "seconds": 0.1}) + "\n")
        before = len(disturbance.said)
        job_module.follow(case, disturbance, 0, tmp_path, progress)
        if len(disturbance.said) > before:
            done[number + 1] = disturbance.said[-1]
    assert list(done)[:4] == [60, 90, 95, 100]
    assert list(done.values()) == ["start", *["pause", "resume"] * 10]
    assert max(done) < 190
    assert progress.onset_step == 60
    assert len(progress.switches) == 20
    assert find_cost(tmp_path, progress.switches) == pytest.approx(0.0)


PATIENCE_S = 10.0


def rests(measure: Callable[[], float], least: float) -> bool:
    """Whether what grows while something goes on grows less than that in a moment."""
    before = measure()
    time.sleep(0.3)
    return measure() - before < least


def goes_on(measure: Callable[[], float], least: float) -> bool:
    """Whether it grows by so much before long: others may have the cores just now."""
    before, deadline_s = measure(), time.monotonic() + PATIENCE_S
    while measure() - before < least and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return measure() - before >= least


def check_switches(disturbance: CanPause, measure: Callable[[], float], least: float) -> None:
    """Let what has been started go on, rest, go on, and rest."""
    for _ in range(2):
        assert goes_on(measure, least)
        disturbance.pause()
        time.sleep(0.2)
        assert rests(measure, least)
        disturbance.resume()
    disturbance.pause()
    time.sleep(0.2)
    assert rests(measure, least)


def own_target() -> Target:
    return Target(0, psutil.Process().pid, min(psutil.Process().cpu_affinity() or [0]))


def test_hogs_rest_and_go_on() -> None:
    hogs = Hogs()
    try:
        hogs.start(own_target())
        (pid,) = hogs.pids()
        check_switches(hogs, lambda: cpu_seconds(pid), 0.02)
    finally:
        hogs.stop()


def test_a_process_is_no_longer_held_up() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        cycle = DutyCycle(0.01, 0.02, least_s=0.0)
        try:
            cycle.start(Target(0, process.pid, 0))
            check_switches(cycle, lambda: cycle.effect().amount, 0.01)
        finally:
            cycle.stop()
            process.send_signal(signal.SIGKILL)


def test_threads_go_back_to_where_they_were() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        rank = psutil.Process(process.pid)
        usual = rank.cpu_affinity()
        bound = SharedCore("own")
        bound.start(Target(0, process.pid, min(usual)))
        assert rank.cpu_affinity() == [min(usual)]
        bound.pause()
        assert rank.cpu_affinity() == usual
        bound.resume()
        assert rank.cpu_affinity() == [min(usual)]
        process.send_signal(signal.SIGKILL)


def test_a_bug_is_off_and_on(tmp_path: Path) -> None:
    bug = TrainingBug("work")
    bug.prepare(1, tmp_path)
    bug.start(own_target())
    file = tmp_path / "bug.on"
    assert file.exists()
    bug.pause()
    assert not file.exists()
    bug.resume()
    assert file.exists()
    bug.stop()
    assert not file.exists()


def test_the_thread_that_holds_the_lock_comes_again(tmp_path: Path) -> None:
    file = tmp_path / "bug.on"
    bug = ALL_BUGS["hold_lock"](0, 2, {"burn": "0.0001", "pause": "0.001"}, file)
    threads = []
    for _ in range(2):
        file.touch()
        bug.in_forward(None, torch.zeros(1))
        (thread,) = (one for one in threading.enumerate() if one.name == "tokenizer")
        assert thread.is_alive()
        file.unlink()
        thread.join(5.0)
        assert not thread.is_alive()
        threads.append(thread)
    assert threads[0] is not threads[1]


def test_the_thread_in_the_agent_rests_and_goes_on(tmp_path: Path) -> None:
    busy = BusyAgent(where="idle")
    busy.prepare(0, tmp_path)
    words = [sys.executable, "-c", "input()", "agent"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=busy.environment()) as agent:
        try:
            busy.start(own_target())
            check_switches(busy, lambda: busy.effect().amount, 0.005)
        finally:
            busy.stop()
            agent.send_signal(signal.SIGKILL)
