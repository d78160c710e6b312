"""A fair share of the cores for a helper that gets next to nothing of them, lent for a while.

    it sleeps               nothing is missing
    beside one rank         at niceness 19 it gets 1.4 % of the core, and all of it while ranks wait for each other
    beside others, too      0.5 %: to store what came takes a minute, and the job has ended before its cause is told
                            -> the kernel's account shows it: lent as much as others get, then looked at again

What is lent goes to work that is there anyway, a few hundredths of a core. A job whose ranks have the cores for
themselves lends nothing, whatever its helpers get: only where they wait for a core as well is the machine too full, and
only where others have so much of the cores is it not the job itself that fills it.

Source:
    sched_prio_to_weight in kernel/sched/core.c (15 for niceness 19, 1024 for 0); sched-stats.rst of the kernel's
    documentation for the account of a thread; proc_stat(5) for the account of a CPU.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from rootwalk.graph.own_process import is_idle, set_idle, set_niceness, set_session_niceness
from rootwalk.graph.process_tree import find_descendants

__all__ = ["Account", "Look", "Rations", "read_account", "read_cpus"]

PROC: Final = Path("/proc")
PERIOD_S: Final = 2.0
# A helper starves that runs less while its threads wait so much, as parts of the time. A receiver beside two ranks on
# two cores ran 4 to 12 %; with four more processes 0.0 to 1.5 %, its threads waiting 0.3 to 4 s a second.
MAX_RAN: Final = 0.03
MIN_WAITED: Final = 0.5
# Then the job is watched for so long: it lends where it waits for cores for so much of the time that it runs. Two ranks
# on two cores, with their own threads and helpers, waited 0.12 to 0.20 of it; with four more processes 0.65 to 1.75.
PROBE_S: Final = 1.0
MIN_CROWDED: Final = 0.5
# And where others run on the CPUs that it may use for so much of the time that it runs there. Four ranks on two cores
# are in each other's way (they wait 1.5 times what they run), and others run 0.02 to 0.08 of it; beside two ranks and
# four more processes it was 0.63 to 1.15.
MIN_OTHERS: Final = 0.5
# Long enough to store what came, to see a slowdown in it and to find its cause; on two cores this took two seconds of
# one, which were the ranks'. So the next time is a while after it.
LENT_S: Final = 10.0
PAUSE_S: Final = 20.0
_NS: Final = 1e9
# What a CPU runs, of the fields of its line: not what it is idle, and not what the hypervisor takes.
_RUN_FIELDS: Final = {1: "user", 2: "nice", 3: "system", 6: "irq", 7: "softirq"}


@dataclass(frozen=True, slots=True)
class Account:
    """What the threads of a process have run, and waited to run, since they began, s."""

    ran_s: float
    waited_s: float

    def __sub__(self, other: Account) -> Account:
        return Account(self.ran_s - other.ran_s, self.waited_s - other.waited_s)

    def is_starved(self, passed_s: float) -> bool:
        """Return whether a process with this account of so many seconds wanted to run and got next to nothing."""
        return 0.0 <= self.ran_s < MAX_RAN * passed_s and self.waited_s >= MIN_WAITED * passed_s

    def is_crowded(self) -> bool:
        """Return whether a job with this account of some time waited for cores."""
        return self.ran_s >= 0.0 and self.waited_s > MIN_CROWDED * self.ran_s


class Look(NamedTuple):
    """What the processes of a job had run and waited, and what any CPU had run, s."""

    job: dict[int, Account]
    run_s_by_cpu: dict[int, float]

    def is_job_crowded_out(self, before: Look) -> bool:
        """Return whether a job has waited for cores since, and others had them."""
        job = _sum_of_changes(before.job, self.job)
        cpus = _find_cpus(self.job).intersection(self.run_s_by_cpu, before.run_s_by_cpu)
        run_s = sum(self.run_s_by_cpu[cpu] - before.run_s_by_cpu[cpu] for cpu in cpus)
        return job.is_crowded() and run_s - job.ran_s > MIN_OTHERS * job.ran_s


@dataclass(slots=True)
class Rations:
    """Looks at one helper now and then, and lends to it and to its children; without privileges it can lend nothing.

    Attributes:
        low: Their niceness while nothing is lent.
        fair: That of others; while it is lent.
        find_job: Returns the processes of the job, whose cores they are.
        now_s: A clock for intervals.
        lent: How often it was lent something.
    """

    low: int
    fair: int
    find_job: Callable[[], Iterable[int]]
    now_s: Callable[[], float] = time.monotonic
    lent: int = 0
    _due_s: float = -math.inf
    _looked_s: float = -math.inf
    _before: Account | None = None
    _before_lending: Look | None = None
    _is_lent: bool = False
    _idle: set[int] = field(default_factory=set)

    def feed(self, pid: int) -> None:
        """Look whether a helper starves, lend to it, or take back what it was lent; cheap until it is time to."""
        now_s = self.now_s()
        if now_s < self._due_s:
            return
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        account = read_account(pid)
        before, self._before = self._before, account
        self._due_s = now_s + PERIOD_S
        if self._is_lent:
            self._take_back(pid)
            self._due_s = now_s + PAUSE_S
        elif self._before_lending is not None:
            look, self._before_lending = self._before_lending, None
            if self._look().is_job_crowded_out(look):
                self._lend(pid)
                self._due_s = now_s + LENT_S
        elif account is not None and before is not None and (account - before).is_starved(passed_s):
            self._before_lending = self._look()
            self._due_s = now_s + PROBE_S

    def _look(self) -> Look:
        told = {pid: read_account(pid) for pid in self.find_job()}
        return Look({pid: one for pid, one in told.items() if one is not None}, read_cpus())

    def _lend(self, pid: int) -> None:
        self.lent += 1
        self._is_lent = True
        self._idle.clear()
        set_niceness(pid, self.fair)
        for child in find_descendants(pid, root=PROC):
            if is_idle(child):
                self._idle.add(child)
                set_idle(child, is_idle=False)
                set_session_niceness(child, self.fair)

    def _take_back(self, pid: int) -> None:
        """Only from who is still a child: a number may be another process's by now."""
        self._is_lent = False
        set_niceness(pid, self.low)
        for child in self._idle.intersection(find_descendants(pid, root=PROC)):
            set_idle(child, is_idle=True)
            set_session_niceness(child, self.low)


def read_account(pid: int) -> Account | None:
    """Return the account of a process; None where it has ended, or the kernel keeps none."""
    ran_ns = waited_ns = 0
    threads = 0
    with contextlib.suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError, ValueError):
                ran, waited, _ = (thread / "schedstat").read_text(encoding="ascii").split()
                ran_ns, waited_ns, threads = ran_ns + int(ran), waited_ns + int(waited), threads + 1
    return Account(ran_ns / _NS, waited_ns / _NS) if threads else None


def read_cpus() -> dict[int, float]:
    """Return what each CPU of the machine has run since it started, s; nothing where the kernel does not tell."""
    run_s = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (PROC / "stat").read_text(encoding="ascii").splitlines():
            name, *_ = fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = sum(int(fields[number]) for number in _RUN_FIELDS)
                run_s[int(name.removeprefix("cpu"))] = ticks / os.sysconf("SC_CLK_TCK")
    return run_s


def _find_cpus(pids: Iterable[int]) -> set[int]:
    """Return the CPUs that any of the processes may use."""
    cpus: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            cpus |= os.sched_getaffinity(pid)
    return cpus


def _sum_of_changes(before: dict[int, Account], after: dict[int, Account]) -> Account:
    """Return what the processes that were there at both times ran and waited in between."""
    changes = [after[pid] - account for pid, account in before.items() if pid in after]
    return Account(sum(c.ran_s for c in changes), sum(c.waited_s for c in changes))
