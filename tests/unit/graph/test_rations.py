"""A helper that gets nothing of the cores is lent a share, and nobody else is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from rootwalk.graph import rations
from rootwalk.graph.rations import (
    LENT_S,
    MAX_RAN,
    MIN_CROWDED,
    MIN_OTHERS,
    MIN_WAITED,
    PAUSE_S,
    PERIOD_S,
    PROBE_S,
    Account,
    Rations,
    read_cpus,
)

NS = 1_000_000_000
TICKS_S = os.sysconf("SC_CLK_TCK")
# Nobody's: more than the kernel gives out.
PID = 2**22 + 1
LOW, FAIR = 19, 0
JOB_PID = PID + 10
# Of the time, what was run and what was waited.
Share = tuple[float, float]
STARVED: Share = (0.0, 2.0)
CROWDED: Share = (0.6, 1.4)
# What others run on the two CPUs of the job, as a part of the time.
OTHERS = 1.4
ELSEWHERE = 7
# Starts another one that is idle, tells its number, and waits for the end of its input.
FAMILY = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", '''
import os, sys, threading
threading.Thread(target=sys.stdin.read).start()
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print("idle", flush=True)
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


class Kernel:
    """Plays the clock, and the accounts of a helper of two threads, of a job, and of its two CPUs and a third one."""

    def __init__(self, root: Path) -> None:
        self.now_s = 100.0
        self._root = root
        self._totals_s: dict[int, tuple[float, float]] = {}
        self.others = OTHERS
        self.elsewhere = 0.0
        self._run_s = {0: 5.0, 1: 3.0, ELSEWHERE: 1.0}
        self.go_on(0.0, (1.0, 1.0))

    def go_on(self, seconds: float, helper: Share, job: Share = CROWDED) -> None:
        """Let time pass in which the threads of each ran and waited such a part of it."""
        self.now_s += seconds
        for pid, (ran, waited), threads in ((PID, helper, 2), (JOB_PID, job, 1)):
            ran_s, waited_s = self._totals_s.get(pid, (1.0, 1.0))
            self._totals_s[pid] = ran_s + ran * seconds, waited_s + waited * seconds
            told = " ".join(f"{total_s / threads * NS:.0f}" for total_s in self._totals_s[pid])
            for number in range(threads):
                thread = self._root / str(pid) / "task" / str(pid + number)
                thread.mkdir(parents=True, exist_ok=True)
                (thread / "schedstat").write_text(f"{told} 7\n")
        for cpu in (0, 1):
            self._run_s[cpu] += max(helper[0] + job[0] + self.others, 0.0) * seconds / 2
        self._run_s[ELSEWHERE] += self.elsewhere * seconds
        lines = [
            # idle, waiting for a disk, stolen: as much as there may be
            f"cpu{cpu} {round(run_s * TICKS_S) - 6} 1 2 {self.now_s:.0f} 9 2 1 {self.now_s:.0f} 4 0"
            for cpu, run_s in self._run_s.items()
        ]
        (self._root / "stat").write_text("\n".join(["cpu 1 1 1 1 1 1 1 1 0 0", *lines, "intr 5"]))


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(rations, "PROC", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", {JOB_PID: {0, 1}}.__getitem__)
    return Kernel(tmp_path)


def make(kernel: Kernel) -> Rations:
    made = Rations(LOW, FAIR, lambda: [JOB_PID], lambda: kernel.now_s)
    made.feed(PID)
    return made


def starve(made: Rations, kernel: Kernel, helper: Share = STARVED, job: Share = CROWDED) -> int:
    """Let it get so little until the job has been looked at as well; return how often something was lent by then."""
    kernel.go_on(PERIOD_S, helper, job)
    made.feed(PID)
    kernel.go_on(PROBE_S, helper, job)
    made.feed(PID)
    return made.lent


@pytest.mark.parametrize(
    ("helper", "job", "lent"),
    [
        ((MAX_RAN / 2, 2 * MIN_WAITED), CROWDED, 1),
        ((0.0, MIN_WAITED + 0.01), CROWDED, 1),
        ((0.0, 0.0), CROWDED, 0),  # asleep
        ((0.0, MIN_WAITED - 0.01), CROWDED, 0),
        ((MAX_RAN * 1.1, 3.0), CROWDED, 0),
        # ranks that have the cores for themselves
        (STARVED, (2.0, 0.0), 0),
        (STARVED, (1.85, 0.37), 0),  # as it was seen
        (STARVED, (1.6, 0.6), 0),
        (STARVED, (1.37, 0.89), 1),  # as it was seen with four more processes
        (STARVED, (2.0, 2.0 * MIN_CROWDED - 0.01), 0),
        (STARVED, (2.0, 2.0 * MIN_CROWDED + 0.01), 1),
        # stopped
        (STARVED, (0.0, 0.0), 0),
    ],
)
def test_only_a_helper_that_starves_beside_a_job_that_waits_is_lent_something(
    kernel: Kernel, helper: Share, job: Share, lent: int
) -> None:
    assert starve(make(kernel), kernel, helper, job) == lent


@pytest.mark.parametrize(
    ("others", "elsewhere", "lent"),
    [
        (0.0, 0.0, 0),
        (0.09, 0.0, 0),  # as it was seen of four ranks on two cores
        (0.6 * MIN_OTHERS - 0.05, 1.0, 0),  # on a CPU that the job may not use
        (0.6 * MIN_OTHERS + 0.05, 0.0, 1),
    ],
)
def test_a_job_that_is_in_its_own_way_lends_nothing(
    kernel: Kernel, others: float, elsewhere: float, lent: int
) -> None:
    kernel.others, kernel.elsewhere = others, elsewhere
    assert starve(make(kernel), kernel) == lent


@pytest.mark.parametrize("text", ["", "cpu0 1 2\n", "cpux 1 1 1 1 1 1 1 1\n", None])
def test_cpus_of_which_nothing_is_known_lend_nothing(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    """Not even of a job that gets nothing at all of them."""
    usual = rations.read_cpus

    def read() -> dict[int, float]:
        (tmp_path / "stat").unlink()
        if text is not None:
            (tmp_path / "stat").write_text(text)
        return usual()

    monkeypatch.setattr(rations, "read_cpus", read)
    assert starve(make(kernel), kernel, job=(0.0, 2.0)) == 0


def test_a_cpu_runs_while_somebody_computes() -> None:
    begun = read_cpus()
    assert os.sched_getaffinity(0) <= begun.keys()
    until_s = time.monotonic() + 0.5
    own_s = -time.process_time()
    while time.monotonic() < until_s:
        pass
    own_s += time.process_time()
    run_s = sum(now_s - begun[cpu] for cpu, now_s in read_cpus().items())
    assert run_s >= own_s - 0.1


def test_a_job_is_not_looked_at_while_its_helper_gets_something(kernel: Kernel) -> None:
    made = Rations(LOW, FAIR, lambda: pytest.fail("the job was looked at"), lambda: kernel.now_s)
    for _ in range(5):
        made.feed(PID)
        kernel.go_on(PERIOD_S, (0.1, 1.0))


def test_nobody_is_asked_before_it_is_time(kernel: Kernel) -> None:
    made = make(kernel)
    for seconds, lent in ((PERIOD_S / 2, 0), (PERIOD_S / 2, 0), (PROBE_S / 2, 0), (PROBE_S / 2, 1)):
        kernel.go_on(seconds, STARVED)
        made.feed(PID)
        assert made.lent == lent


def test_what_was_lent_is_taken_back_and_lent_again(kernel: Kernel) -> None:
    made = make(kernel)
    assert starve(made, kernel) == 1
    kernel.go_on(LENT_S, STARVED)
    made.feed(PID)
    assert starve(made, kernel) == 1  # in the pause after it
    kernel.go_on(PAUSE_S - PERIOD_S - PROBE_S, STARVED)
    made.feed(PID)
    kernel.go_on(PROBE_S, STARVED)
    made.feed(PID)
    assert made.lent == 2


def test_a_helper_that_has_ended_is_lent_nothing(kernel: Kernel, tmp_path: Path) -> None:
    made = make(kernel)
    kernel.go_on(PERIOD_S, STARVED)
    (tmp_path / str(PID)).rename(tmp_path / "gone")
    made.feed(PID)
    kernel.go_on(PROBE_S, STARVED)
    made.feed(PID)
    assert made.lent == 0


def test_a_job_that_has_ended_lends_nothing(kernel: Kernel, tmp_path: Path) -> None:
    made = make(kernel)
    kernel.go_on(PERIOD_S, STARVED)
    made.feed(PID)
    kernel.go_on(PROBE_S, STARVED)
    (tmp_path / str(JOB_PID)).rename(tmp_path / "gone")
    made.feed(PID)
    assert made.lent == 0


def test_an_account_that_begins_again_is_another_process(kernel: Kernel) -> None:
    kernel.go_on(1000.0, (0.5, 0.5))
    assert starve(make(kernel), kernel, helper=(-0.5, 2.0)) == 0


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A process of low niceness that has started an idle one."""
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        os.setpriority(os.PRIO_PGRP, process.pid, LOW)
        yield process.pid, child
        assert process.stdin is not None
        process.stdin.close()


def read_urgency(pid: int) -> set[tuple[int, int]]:
    """Return the policy and the niceness of every thread of a process."""
    threads = [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
    return {(os.sched_getscheduler(t), os.getpriority(os.PRIO_PROCESS, t)) for t in threads}


@pytest.mark.skipif(os.geteuid() != 0, reason="to raise a priority takes privileges")
def test_the_whole_family_is_fed_and_gives_way_again(
    family: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = family
    now_s = time.monotonic()
    hours_s = count(1.0, step=3600.0)
    monkeypatch.setattr(rations, "read_account", lambda _: Account(1.0, next(hours_s)))
    monkeypatch.setattr(rations, "read_cpus", lambda: dict.fromkeys(range(1024), next(hours_s)))
    made = Rations(LOW, FAIR, lambda: [os.getpid()], lambda: now_s)
    before = read_urgency(parent), read_urgency(child)
    assert before == ({(os.SCHED_OTHER, LOW)}, {(os.SCHED_IDLE, 0), (os.SCHED_OTHER, 0)})

    for passed_s in (0.0, PERIOD_S, PROBE_S):
        now_s += passed_s
        made.feed(parent)

    fair = {(os.SCHED_OTHER, FAIR)}
    assert (read_urgency(parent), read_urgency(child)) == (fair, fair)

    now_s += LENT_S
    made.feed(parent)

    assert read_urgency(parent) == {(os.SCHED_OTHER, LOW)}
    assert read_urgency(child) == {(os.SCHED_IDLE, 0)}
