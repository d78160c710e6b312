"""Which job of a store is meant, its latest attempt, and how far that has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import ConfigError

__all__ = ["JobKey", "choose_job", "last_steps", "outline_steps", "read_extent"]

# A launch that ends before its ranks have sent a span has nothing but such events.
_FIRST_EVENTS: Final = (
    semconv.EVENT_ROOTWALK_RUN_END,
    semconv.EVENT_TRAINING_PROCESS_EXCEPTION,
    semconv.EVENT_TRAINING_PROCESS_END,
    semconv.EVENT_TRAINING_RANK_PROGRESS,
)
# The end of the command names no attempt: it adds a launch only where nothing else does.
_JOBS: Final = """
WITH launches AS (
    SELECT job, coalesce(attempt, 0) AS attempt, world_size FROM jobs WHERE job IS NOT NULL AND ranks > 0
    UNION ALL
    SELECT DISTINCT job, coalesce(attempt, 0), NULL FROM log_records
    WHERE job IS NOT NULL AND list_contains($names, event_name)
)
SELECT job, attempt, max(world_size) FROM launches GROUP BY job, attempt ORDER BY job, attempt
"""
# A range of step numbers that holds none.
_NO_STEPS: Final = (0, -1)
# Steps that are read to find episodes and history, up to the last one or around those that the user named: so many of
# all ranks together, whatever the store has, but at least so many of each rank. An older onset is not found.
MAX_OUTLINE_RANK_STEPS: Final = 1_000_000
MIN_OUTLINE_STEPS: Final = 2_000
MAX_OUTLINE_STEPS: Final = 10_000
# Steps read after those that the user named: whether a slowdown goes on after them.
MARGIN_STEPS: Final = 100


@dataclass(frozen=True, slots=True)
class JobKey:
    """One launch of one job in a store; `world_size` is None where no rank said it."""

    job: str
    attempt: int
    world_size: int | None


def choose_job(connection: Any, job: str | None) -> JobKey | None:
    """Return the latest attempt of the named job, or of the store's only one; None for an empty store.

    Raises:
        ConfigError: If there are several jobs and none is named, or the named one is not there.
    """
    rows = connection.execute(_JOBS, {"names": list(_FIRST_EVENTS)}).fetchall()
    names = sorted({str(row[0]) for row in rows})
    if not names:
        return None
    listed = ", ".join(f'"{name}"' for name in names)
    if job is None and len(names) > 1:
        raise ConfigError(
            f"cannot choose a job: saw {len(names)} in the store ({listed}); needs one",
            hint=f"name it: --job {names[0]}",
        )
    if job is not None and job not in names:
        raise ConfigError(
            f'cannot find job "{job}": saw {listed} in the store; needs one of these',
            hint="`rootwalk sql STORE 'SELECT * FROM jobs'` lists them",
        )
    name, attempt, world_size = [row for row in rows if row[0] == (job or names[0])][-1]
    return JobKey(str(name), int(attempt), None if world_size is None else int(world_size))


def read_extent(connection: Any, key: JobKey) -> tuple[int, int]:
    """Return the last step that any rank of a job has reported, 0 without one, and the number of ranks."""
    rows = connection.execute(
        "SELECT coalesce(max(last_step), 0), count(*) FROM ranks WHERE job = ? AND coalesce(attempt, 0) = ?",
        [key.job, key.attempt],
    ).fetchall()
    return int(rows[0][0]), int(rows[0][1])


def last_steps(connection: Any, key: JobKey, count: int) -> tuple[int, int]:
    """Return the first and last of the last `count` steps that a job has reported; (0, -1) without any."""
    rows = connection.execute(
        "SELECT DISTINCT step FROM steps WHERE job = ? AND coalesce(attempt, 0) = ? ORDER BY step DESC LIMIT ?",
        [key.job, key.attempt, count],
    ).fetchall()
    return (int(rows[-1][0]), int(rows[0][0])) if rows else _NO_STEPS


def outline_steps(
    last: int, ranks: int, asked: tuple[int, int] | None, since_step: int
) -> tuple[int, int]:
    """Return the first and last step to read of a job with so many ranks whose last step is `last`."""
    count = min(max(MAX_OUTLINE_RANK_STEPS // max(ranks, 1), MIN_OUTLINE_STEPS), MAX_OUTLINE_STEPS)
    if asked is None:
        return max(last - count + 1, since_step), last
    return max(asked[0] - count, since_step), min(asked[1] + MARGIN_STEPS, last)
