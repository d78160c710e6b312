"""A helper that gets nothing of the cores is lent a share, and nobody else is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.graph import rations
from rootwalk.graph.rations import LENT_S, MAX_RAN, MIN_WAITED, PERIOD_S, Rations

NS = 1_000_000_000
# Nobody's: more than the kernel gives out.
PID = 2**22 + 1
LOW, FAIR = 19, 0
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
    """Plays the accounts of one process of two threads, and the clock."""

    def __init__(self, root: Path) -> None:
        self.now_s = 100.0
        self._ran_s = self._waited_s = 0.0
        self._threads = [root / str(PID) / "task" / str(PID + number) for number in range(2)]
        for thread in self._threads:
            thread.mkdir(parents=True)
        self.go_on(0.0, 0.0, 0.0)

    def go_on(self, seconds: float, ran: float, waited: float) -> None:
        """Let time pass in which the threads together ran and waited such a part of it."""
        self.now_s += seconds
        self._ran_s += ran * seconds
        self._waited_s += waited * seconds
        for thread in self._threads:
            told = f"{self._ran_s / 2 * NS:.0f} {self._waited_s / 2 * NS:.0f} 7\n"
            (thread / "schedstat").write_text(told)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(rations, "PROC", tmp_path)
    return Kernel(tmp_path)


def make(kernel: Kernel) -> Rations:
    made = Rations(LOW, FAIR, lambda: kernel.now_s)
    made.feed(PID)
    return made


@pytest.mark.parametrize(
    ("ran", "waited", "lent"),
    [
        (MAX_RAN / 2, 2 * MIN_WAITED, 1),
        (0.0, MIN_WAITED + 0.01, 1),
        (0.0, 0.0, 0),  # asleep
        (0.0, MIN_WAITED - 0.01, 0),
        (MAX_RAN * 1.1, 3.0, 0),  # beside one rank
    ],
)
def test_only_who_waits_and_gets_nothing_is_lent_something(
    kernel: Kernel, ran: float, waited: float, lent: int
) -> None:
    made = make(kernel)
    kernel.go_on(PERIOD_S, ran, waited)
    made.feed(PID)
    assert made.lent == lent


def test_nobody_is_asked_before_it_is_time(kernel: Kernel) -> None:
    made = make(kernel)
    kernel.go_on(PERIOD_S / 2, 0.0, 2.0)
    made.feed(PID)
    assert made.lent == 0
    kernel.go_on(PERIOD_S / 2, 0.0, 2.0)
    made.feed(PID)
    assert made.lent == 1


def test_what_was_lent_is_taken_back_and_lent_again(kernel: Kernel) -> None:
    made = make(kernel)
    for lent in (1, 2):
        # Lent, then fed for a while, and one look in between that finds it starving again.
        for _ in range(3):
            kernel.go_on(PERIOD_S, 0.0, 2.0)
            made.feed(PID)
            assert made.lent == lent
        kernel.go_on(LENT_S, 0.3, 0.5)
        made.feed(PID)
        assert made.lent == lent


def test_who_has_ended_is_lent_nothing(kernel: Kernel, tmp_path: Path) -> None:
    made = make(kernel)
    kernel.go_on(PERIOD_S, 0.0, 2.0)
    (tmp_path / str(PID)).rename(tmp_path / "gone")
    made.feed(PID)
    assert made.lent == 0


def test_an_account_that_begins_again_is_another_process(kernel: Kernel) -> None:
    kernel.go_on(0.0, 0.0, 0.0)
    kernel.go_on(1000.0, 0.5, 0.5)
    made = make(kernel)
    kernel.go_on(PERIOD_S, -0.5, 2.0)
    made.feed(PID)
    assert made.lent == 0


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
    accounts = iter([rations.Account(1.0, 1.0), *[rations.Account(1.0, 99.0)] * 9])
    monkeypatch.setattr(rations, "read_account", lambda pid: next(accounts))
    made = Rations(LOW, FAIR, lambda: now_s)
    before = read_urgency(parent), read_urgency(child)
    assert before == ({(os.SCHED_OTHER, LOW)}, {(os.SCHED_IDLE, 0), (os.SCHED_OTHER, 0)})

    made.feed(parent)
    now_s += PERIOD_S
    made.feed(parent)

    fair = {(os.SCHED_OTHER, FAIR)}
    assert (read_urgency(parent), read_urgency(child)) == (fair, fair)

    now_s += LENT_S
    made.feed(parent)

    assert read_urgency(parent) == {(os.SCHED_OTHER, LOW)}
    assert read_urgency(child) == {(os.SCHED_IDLE, 0)}
