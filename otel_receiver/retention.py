"""How long telemetry is kept: by age, by size, or for ever.

A step is kept whole or not at all: while one rank's step is young enough, everything of that step stays. Deleting
leaves free space inside the file, which the next records use; only a copy makes the file smaller, and that is worth
its price when more than half is free.

    received:   |---- deleted ----|---- kept ----> now
                                cutoff: now - age, or later when the store is too large

Works on an open connection; copying the file is the store's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rootwalk.instrumentation.errors import ConfigError
from rootwalk.instrumentation.semconv import EVENT_TRAINING_FLIGHT_RECORD

__all__ = ["KEEP_ALL", "Retention", "delete_old", "is_compaction_due", "would_delete_most"]

# Deleting starts here and goes down to there, as parts of the size that is allowed: seldom, and before it is reached.
HIGH_RATIO: Final = 0.9
LOW_RATIO: Final = 0.7
# A file with more free space than this is copied; below, the space is used again soon enough.
MAX_FREE_RATIO: Final = 0.5
# An empty store has half a MiB; less than a few cannot be kept to.
MIN_RETENTION_BYTES: Final = 16 * 1024 * 1024
MIN_RETENTION_AGE_S: Final = 60.0

# More than that at once is a wrong clock, or a receiver that was off for long; both can wait.
MAX_DELETED_RATIO: Final = 0.5

_TIMED_TABLES: Final = (
    "span_records",
    "metric_records",
    "log_records",
    "profile_records",
    "profile_sample_records",
)
_KEPT_STEP: Final = """
SELECT 1 FROM step_ranges k WHERE k.job = span_records.job AND k.step = span_records.step
    AND k.attempt IS NOT DISTINCT FROM span_records.attempt AND k.received_unix_ns >= $cutoff
"""
_DELETES: Final = {
    "span_records": f"DELETE FROM span_records WHERE received_unix_ns < $cutoff AND NOT EXISTS ({_KEPT_STEP})",  # noqa: S608
    **{
        name: f"DELETE FROM {name} WHERE received_unix_ns < $cutoff"  # noqa: S608  (our own names)
        for name in (*_TIMED_TABLES[1:], "step_ranges", "rank_summaries", "imported_requests")
    },
    "metric_states": "DELETE FROM metric_states WHERE unix_ns < $cutoff",
}
# What a graph is of: steps, or dumps of a job that hung.
_JOBS: Final = (
    "(SELECT job, attempt FROM rank_summaries UNION ALL SELECT job, attempt FROM log_records"  # noqa: S608
    f" WHERE event_name = '{EVENT_TRAINING_FLIGHT_RECORD}')"
)
# What belongs to something that is gone.
_FOLLOWING: Final = (
    *(
        f"DELETE FROM {name} WHERE dictionary_id NOT IN (SELECT dictionary_id FROM profile_records)"  # noqa: S608
        for name in ("profile_dictionaries", "profile_stacks", "profile_locations")
    ),
    *(
        f"DELETE FROM {name} WHERE NOT EXISTS (SELECT 1 FROM {_JOBS} r WHERE r.job = {name}.job"  # noqa: S608
        f" AND coalesce(r.attempt, 0) = coalesce({name}.attempt, 0))"
        for name in (
            *("rank_processes", "clock_offsets", "nodes", "edges", "evidence"),
            *("diagnosed_findings", "live_findings"),
        )
    ),
    "UPDATE rank_summaries AS r SET first_step = greatest(r.first_step, k.first_step),"
    " first_unix_ns = greatest(r.first_unix_ns, k.first_unix_ns) FROM"
    " (SELECT job, attempt, min(step) AS first_step, min(start_unix_ns) AS first_unix_ns FROM step_ranges"
    "  GROUP BY job, attempt) AS k"
    " WHERE k.job = r.job AND k.attempt IS NOT DISTINCT FROM r.attempt AND r.first_step < k.first_step",
)


@dataclass(frozen=True, slots=True)
class Retention:
    """What to keep.

    Attributes:
        age_s: Records that were received longer ago go; None keeps them.
        size_bytes: The oldest go when the store comes near this size; None lets it grow.
    """

    age_s: float | None = None
    size_bytes: int | None = None

    def validate(self) -> None:
        """Check what can be checked before anything starts.

        Raises:
            ConfigError: With the value that cannot be.
        """
        if self.age_s is not None and self.age_s < MIN_RETENTION_AGE_S:
            raise ConfigError(
                f"cannot keep telemetry for {self.age_s:g} s; needs {MIN_RETENTION_AGE_S:g} s or more",
                hint="--retention-age 7d keeps a week",
            )
        if self.size_bytes is not None and self.size_bytes < MIN_RETENTION_BYTES:
            raise ConfigError(
                f"cannot keep a store to {self.size_bytes} bytes; needs {MIN_RETENTION_BYTES} or more",
                hint="--retention-bytes 20GB keeps twenty gigabytes",
            )

    def is_bounded(self) -> bool:
        """Say whether anything is ever deleted."""
        return self.age_s is not None or self.size_bytes is not None


KEEP_ALL: Final = Retention()


def delete_old(connection: Any, retention: Retention, now_unix_ns: int) -> int:
    """Delete what is not to be kept, in one transaction; return the records deleted.

    Raises:
        duckdb.Error: If the database refuses; nothing is deleted then.
    """
    cutoff = _cutoff_unix_ns(connection, retention, now_unix_ns)
    if cutoff is None:
        return 0
    deleted = 0
    connection.begin()
    try:
        for name, statement in _DELETES.items():
            ((count,),) = connection.execute(statement, {"cutoff": cutoff}).fetchall()
            deleted += count if name in _TIMED_TABLES else 0
        for statement in _FOLLOWING:
            connection.execute(statement)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    return deleted


def would_delete_most(connection: Any, retention: Retention, now_unix_ns: int) -> bool:
    """Return whether more than half of all records are too old."""
    if retention.age_s is None:
        return False
    cutoff = now_unix_ns - round(retention.age_s * 1e9)
    times = " UNION ALL ".join(f"SELECT received_unix_ns FROM {t}" for t in _TIMED_TABLES)  # noqa: S608
    ((old, every),) = connection.execute(
        f"SELECT count(*) FILTER (received_unix_ns < ?), count(*) FROM ({times})",  # noqa: S608
        [cutoff],
    ).fetchall()
    return bool(old > MAX_DELETED_RATIO * every)


def is_compaction_due(connection: Any, retention: Retention) -> bool:
    """Say whether a store's file is worth copying: more than half free, or larger than is allowed."""
    used_bytes, file_bytes = _sizes(connection)
    if file_bytes - used_bytes > MAX_FREE_RATIO * file_bytes and file_bytes > MIN_RETENTION_BYTES:
        return True
    limit = retention.size_bytes
    return limit is not None and file_bytes > limit and used_bytes < HIGH_RATIO * limit


def _cutoff_unix_ns(connection: Any, retention: Retention, now_unix_ns: int) -> int | None:
    """Return the time before which nothing is kept; None where everything is."""
    cutoffs = []
    if retention.age_s is not None:
        cutoffs.append(now_unix_ns - round(retention.age_s * 1e9))
    if retention.size_bytes is not None:
        used_bytes, _ = _sizes(connection)
        if used_bytes > HIGH_RATIO * retention.size_bytes:
            ratio = 1.0 - LOW_RATIO * retention.size_bytes / used_bytes
            times = " UNION ALL ".join(f"SELECT received_unix_ns FROM {t}" for t in _TIMED_TABLES)  # noqa: S608
            rows = connection.execute(
                f"SELECT quantile_disc(received_unix_ns, {ratio:.4f}) FROM ({times})"  # noqa: S608
            ).fetchall()
            cutoffs += [row[0] for row in rows if row[0] is not None]
    return max(cutoffs, default=None)


def _sizes(connection: Any) -> tuple[int, int]:
    """Return the bytes in use and the bytes of the file."""
    ((used, total, block),) = connection.execute(
        "SELECT used_blocks, total_blocks, block_size FROM pragma_database_size()"
        " WHERE database_name = current_database()"
    ).fetchall()
    return int(used) * int(block), int(total) * int(block)
