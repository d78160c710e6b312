"""The diagnosis behind the page: made again while somebody looks and the store has news, and no more often than that.

    a look at the page -> wanted for 20 s
    every second       -> wanted, and news?   diagnose, read what the pictures show, render; keep the last one

A diagnosis computes for a second or a minute, so it is repeated after a pause of some times its cost; a finding that
live detection opens or closes shortens the pause, because then the answer is another one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.live.store import stamp_of
from rootwalk.graph.report.reading import ReportData, read_report
from rootwalk.instrumentation.errors import RootwalkError
from rootwalk.otel_receiver import store

__all__ = ["Problem", "Snapshot", "Snapshots"]

logger = logging.getLogger(__name__)

# Browsers ask every second or two.
WANTED_S: Final = 20.0
# At most a sixth of a core for the diagnosis while somebody looks; a second of one gives an answer every six.
PAUSE_PER_COST: Final = 5.0
MIN_PAUSE_S: Final = 2.0
# Jobs that are kept; the one that was looked at longest ago goes.
MAX_KEPT: Final = 8


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the last attempt gave no answer, and what to do."""

    message: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One answer: its number (they ascend), what it shows, as HTML too, when it was made and what it cost."""

    number: int
    report: ReportData
    html: str
    made_unix_ns: int
    cost_s: float


@dataclass(slots=True)
class _Entry:
    """What is kept of one job; `stamp` is the store's after the last answer, `mark` what live detection said then."""

    wanted_s: float
    asked_s: float = float("-inf")
    stamp: tuple[int, ...] = ()
    mark: object = None
    seen_mark: object = None
    cost_s: float = 0.0
    snapshot: Snapshot | None = None
    problem: Problem | None = None


class Snapshots:
    """Answers by job; every method may be called from any thread.

    Args:
        path: The store.
        render: Makes the page's part out of what is to be shown.
        now_s: A clock for pauses.
    """

    def __init__(
        self,
        path: Path,
        render: Callable[[ReportData], str],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._render = render
        self._now_s = now_s
        self._entries: dict[str, _Entry] = {}
        self._guard = threading.Lock()
        self._making = threading.Lock()
        self._count = 0

    def want(self, job: str, mark: object) -> tuple[Snapshot | None, Problem | None]:
        """Say that somebody looks at a job, and what live detection says of it; return the last answer."""
        with self._guard:
            entry = self._entries.get(job)
            if entry is None:
                while len(self._entries) >= MAX_KEPT:
                    oldest = min(self._entries, key=lambda name: self._entries[name].wanted_s)
                    del self._entries[oldest]
                entry = self._entries[job] = _Entry(self._now_s())
            entry.wanted_s = self._now_s()
            entry.seen_mark = mark
            return entry.snapshot, entry.problem

    def due(self) -> str | None:
        """Return the job that most needs a new answer, None where none does."""
        now_s = self._now_s()
        with self._guard:
            for job, entry in sorted(self._entries.items(), key=lambda item: item[1].asked_s):
                is_changed = entry.mark != entry.seen_mark and entry.snapshot is not None
                pause_s = 0.0 if is_changed else PAUSE_PER_COST * entry.cost_s
                is_rested = now_s - entry.asked_s >= max(pause_s, MIN_PAUSE_S)
                is_wanted = now_s - entry.wanted_s < WANTED_S
                if is_wanted and is_rested and (is_changed or entry.stamp != stamp_of(self._path)):
                    return job
        return None

    def answer(self, job: str) -> tuple[Snapshot | None, Problem | None]:
        """Return the last answer about a job, after making the first one; takes as long as a diagnosis."""
        snapshot, problem = self.want(job, None)
        if snapshot is not None or problem is not None:
            return snapshot, problem
        self.make(job)
        return self.want(job, None)

    def make(self, job: str) -> None:
        """Make a new answer and keep it; one at a time, the others wait."""
        with self._making:
            began_s, before = self._now_s(), stamp_of(self._path)
            with self._guard:
                entry = self._entries.setdefault(job, _Entry(began_s))
                mark = entry.seen_mark
            snapshot, problem = self._make(job)
            with self._guard:
                entry.asked_s = self._now_s()
                entry.cost_s = entry.asked_s - began_s
                entry.mark = mark
                # The diagnosis writes the store, too: that is no news, neither for this job nor for others.
                after = stamp_of(self._path)
                for other in self._entries.values():
                    if other is entry or other.stamp == before:
                        other.stamp = after
                entry.snapshot = snapshot or entry.snapshot
                entry.problem = problem

    def _make(self, job: str) -> tuple[Snapshot | None, Problem | None]:
        began_s = time.monotonic()
        try:
            verdict = diagnose(self._path, job=job)
            with store.reading(self._path) as connection:
                report = read_report(connection, verdict, self._path.name)
            html = self._render(report)
        except RootwalkError as error:
            return None, Problem(str(error), error.hint)
        except Exception:  # outermost frame of a diagnosis: the page goes on with the last answer
            logger.exception("the diagnosis for the page failed")
            return None, Problem("cannot diagnose: saw an error of Rootwalk's own", "see its log")
        self._count += 1
        cost_s = time.monotonic() - began_s
        return Snapshot(self._count, report, html, time.time_ns(), cost_s), None
