"""What live detection reads from the store: new steps by the time at which they came, and the span to point at.

Works on an open connection, like `graph_store`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootwalk.graph.live.findings import Exemplar

__all__ = [
    "NewStep",
    "read_exemplar",
    "read_last_received",
    "read_new_steps",
    "read_steps_since",
    "stamp_of",
]

_STEPS = (
    "SELECT job, coalesce(attempt, 0), step, rank, start_unix_ns, end_unix_ns, received_unix_ns"
    " FROM steps WHERE is_complete"
)


@dataclass(frozen=True, slots=True)
class NewStep:
    """One rank's complete step, and when its request came; Unix ns."""

    job: str
    attempt: int
    step: int
    rank: int
    start_ns: int
    end_ns: int
    received_ns: int


def read_last_received(connection: Any) -> int:
    """Return when the last step in the store came, Unix ns; 0 without one."""
    return int(
        connection.execute("SELECT coalesce(max(received_unix_ns), 0) FROM steps").fetchone()[0]
    )


def read_new_steps(connection: Any, since_unix_ns: int) -> list[NewStep]:
    """Return the complete steps of all jobs that came at a time or later.

    Rows are stored in the order in which they come, so DuckDB reads the last row groups only, however large the store.
    """
    query = f"{_STEPS} AND received_unix_ns >= ?"
    return [NewStep(*row) for row in connection.execute(query, [since_unix_ns]).fetchall()]


def read_steps_since(connection: Any, job: str, attempt: int, first_step: int) -> list[NewStep]:
    """Return the complete steps of one job and attempt from a step on."""
    query = f"{_STEPS} AND job = ? AND coalesce(attempt, 0) = ? AND step >= ?"
    rows = connection.execute(query, [job, attempt, first_step]).fetchall()
    return [NewStep(*row) for row in rows]


def read_exemplar(
    connection: Any, job: str, attempt: int, step: int, rank: int | None
) -> Exemplar | None:
    """Return a rank's step, that of the rank that ended it last where none is named."""
    row = connection.execute(
        "SELECT trace_id, span_id, step, start_unix_ns, end_unix_ns FROM steps WHERE job = ?"
        " AND coalesce(attempt, 0) = ? AND step = ? AND (rank = ? OR ?) AND trace_id IS NOT NULL"
        " AND span_id IS NOT NULL ORDER BY end_unix_ns DESC LIMIT 1",
        [job, attempt, step, rank, rank is None],
    ).fetchone()
    return None if row is None else Exemplar(*row)


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return what changes whenever a store is written: an unchanged one need not be opened."""
    stamp: list[int] = []
    for file in (path, path.with_name(path.name + ".wal")):
        try:
            status = file.stat()
        except OSError:
            continue
        stamp += [status.st_ino, status.st_mtime_ns, status.st_size]
    return tuple(stamp)
