"""What the live page asks a store every second or so: jobs, the last steps, findings that open and close.

Works on an open connection, like `graph_store`. Bounded whatever the store has: of the last steps only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

from rootwalk.graph.finding_store import load_live_findings
from rootwalk.graph.job_choice import JobKey, read_extent
from rootwalk.graph.live.findings import LiveFinding

__all__ = ["JobLine", "Pulse", "read_jobs", "read_pulse"]

NS: Final = 1e9
# Steps whose times are shown; of many ranks fewer, so that a look stays a few tens of ms.
SHOWN_STEPS: Final = 120
MAX_RANK_STEPS: Final = 500_000
MIN_STEPS: Final = 20
# Steps that say how fast the job is now: the median of as many passes over one odd step.
RECENT_STEPS: Final = 5

_JOBS = (
    "SELECT job, coalesce(attempt, 0), world_size, ranks, steps, first_unix_ns, last_unix_ns FROM jobs"
    " WHERE job IS NOT NULL ORDER BY last_unix_ns DESC, job, 2 DESC"
)
_STEPS = (
    "SELECT step, max(end_unix_ns), count(DISTINCT rank) FROM steps WHERE job = ? AND coalesce(attempt, 0) = ?"
    " AND is_complete AND step BETWEEN ? AND ? GROUP BY step ORDER BY step"
)


@dataclass(frozen=True, slots=True)
class JobLine:
    """One launch of one job, latest first; times Unix ns, None where nobody said it."""

    job: str
    attempt: int
    world_size: int | None
    ranks: int
    steps: int
    first_unix_ns: int | None
    last_unix_ns: int | None


@dataclass(frozen=True, slots=True)
class Pulse:
    """How a job does now.

    Attributes:
        steps: Number and seconds of each of the last steps that all ranks have ended, from the end of the one before.
        last_step: The last of them, None without one.
        last_unix_ns: When it ended, on the ranks' clock.
        ranks: Ranks that have reported.
        findings: What live detection has kept, by first step.
    """

    steps: tuple[tuple[int, float], ...]
    last_step: int | None
    last_unix_ns: int | None
    ranks: int
    findings: tuple[LiveFinding, ...]

    @property
    def step_s(self) -> float | None:
        """The median of the last five steps, seconds; None while there is none."""
        return median([s for _, s in self.steps[-RECENT_STEPS:]]) if self.steps else None

    @property
    def usual_step_s(self) -> float | None:
        """The median of all shown steps; None while there are fewer than ten."""
        return median([s for _, s in self.steps]) if len(self.steps) >= 2 * RECENT_STEPS else None


def read_jobs(connection: Any) -> tuple[JobLine, ...]:
    """Return the jobs of a store, the one that reported last first."""
    return tuple(JobLine(*row) for row in connection.execute(_JOBS).fetchall())


def read_pulse(connection: Any, key: JobKey) -> Pulse:
    """Return how a job does: its last steps, and what live detection says of it."""
    last, ranks = read_extent(connection, key)
    count = min(SHOWN_STEPS, max(MAX_RANK_STEPS // max(ranks, 1), MIN_STEPS))
    rows = connection.execute(_STEPS, [key.job, key.attempt, last - count, last]).fetchall()
    # A step counts when as many ranks have ended it as any step here has.
    most = max((int(row[2]) for row in rows), default=0)
    ended = [(int(step), int(end_ns)) for step, end_ns, seen in rows if int(seen) == most]
    steps = tuple(
        (step, (end_ns - before_ns) / NS / (step - before))
        for (before, before_ns), (step, end_ns) in pairwise(ended)
        if end_ns >= before_ns
    )
    return Pulse(
        steps=steps,
        last_step=ended[-1][0] if ended else None,
        last_unix_ns=ended[-1][1] if ended else None,
        ranks=ranks,
        findings=load_live_findings(connection, key.job, key.attempt),
    )
