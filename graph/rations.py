"""A fair share of the cores for a helper that gets next to nothing of them, lent for a while.

    it sleeps               nothing is missing
    beside one process      at niceness 19 it gets 1.4 % of a core, and all of it while ranks wait for each other
    beside three of them    0.5 %: to store what came takes a minute, and the job has ended before its cause is told
                            -> the kernel's account shows it: lent as much as others get, then looked at again

What is lent goes to work that is there anyway, a few hundredths of a core, on a machine that is too full already. A
helper that shares its core with a rank alone is lent nothing, so a healthy job keeps what it has.

Source:
    sched_prio_to_weight in kernel/sched/core.c (15 for niceness 19, 1024 for 0); sched-stats.rst of the kernel's
    documentation for the account of a thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rootwalk.graph.own_process import is_idle, set_idle, set_niceness, set_session_niceness

__all__ = ["Account", "Rations", "read_account"]

PROC: Final = Path("/proc")
PERIOD_S: Final = 4.0
# Less than niceness 19 leaves beside one process that never sleeps, while threads waited. A receiver beside two ranks
# on two cores ran 2 to 12 % of a core; with four more processes 0.0 to 0.9 %, its threads waiting 0.5 to 3 s a second.
MAX_RAN: Final = 0.01
MIN_WAITED: Final = 0.5
# Long enough to store what came, to see a slowdown in it and to find its cause.
LENT_S: Final = 10.0
_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class Account:
    """What the threads of a process have run, and waited to run, since they began, s."""

    ran_s: float
    waited_s: float

    def is_starved(self, before: Account, passed_s: float) -> bool:
        """Return whether a process that wanted to run got next to nothing of the cores in so many seconds."""
        ran_s, waited_s = self.ran_s - before.ran_s, self.waited_s - before.waited_s
        return 0.0 <= ran_s < MAX_RAN * passed_s and waited_s >= MIN_WAITED * passed_s


@dataclass(slots=True)
class Rations:
    """Looks at one helper now and then, and lends to it and to its children; without privileges it can lend nothing.

    Attributes:
        low: Their niceness while nothing is lent.
        fair: That of others; while it is lent.
        now_s: A clock for intervals.
        lent: How often it was lent something.
    """

    low: int
    fair: int
    now_s: Callable[[], float] = time.monotonic
    lent: int = 0
    _looked_s: float | None = None
    _lent_s: float | None = None
    _before: Account | None = None
    _idle: set[int] = field(default_factory=set)

    def feed(self, pid: int) -> None:
        """Look whether a helper starves, lend to it, or take back what it was lent; cheap until it is time to."""
        now_s = self.now_s()
        passed_s = PERIOD_S if self._looked_s is None else now_s - self._looked_s
        if passed_s < PERIOD_S:
            return
        self._looked_s = now_s
        now = read_account(pid)
        before, self._before = self._before, now
        if self._lent_s is not None:
            if now_s - self._lent_s >= LENT_S:
                self._take_back(pid)
        elif now is not None and before is not None and now.is_starved(before, passed_s):
            self._lend(pid)

    def _lend(self, pid: int) -> None:
        self.lent += 1
        self._lent_s = self.now_s()
        self._idle.clear()
        set_niceness(pid, self.fair)
        for child in _find_children(pid):
            if is_idle(child):
                self._idle.add(child)
                set_idle(child, is_idle=False)
                set_session_niceness(child, self.fair)

    def _take_back(self, pid: int) -> None:
        """Only from who is still a child: a number may be another process's by now."""
        self._lent_s = None
        set_niceness(pid, self.low)
        for child in self._idle.intersection(_find_children(pid)):
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


def _find_children(pid: int) -> set[int]:
    """Return the processes that a process has started; none where the kernel does not list them."""
    children: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                children.update(map(int, (thread / "children").read_text("ascii").split()))
    return children
