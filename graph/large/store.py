"""Read a few columns about all ranks of a job from the store: how much there is, and who came when.

Works on an open connection, like `graph_store`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rootwalk.graph.columns import IntArray
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.large.arrivals import Arrivals
from rootwalk.graph.store_columns import NS, integers

__all__ = ["StepSize", "read_arrivals", "read_offsets_ns", "read_step_size", "thinned"]

# Rows about all ranks that are read at once.
MAX_ROWS: Final = 6_000_000
_COLUMNS: Final = (
    "SELECT step::INTEGER AS step, rank::INTEGER AS rank, hash(communicator_id, is_point_to_point) AS communicator,"
    " hash(communicator_id, is_point_to_point, sequence) AS call, coalesce(communicator_size, 0)::INTEGER AS size,"
    " start_unix_ns FROM collectives"
)
_AMONG: Final = (
    " AND list_contains(?, step) AND end_unix_ns >= start_unix_ns AND rank BETWEEN 0 AND ?"
    " AND step BETWEEN ? AND ?"
)
_JOB: Final = " WHERE job = ? AND coalesce(attempt, 0) = ? AND rank IS NOT NULL"


@dataclass(frozen=True, slots=True)
class StepSize:
    """How many spans and collectives all ranks together have in one step."""

    spans: int
    collectives: int


def read_step_size(connection: Any, key: JobKey, step: int) -> StepSize:
    """Return how many records a step of a job has."""
    row = connection.execute(
        f"SELECT count(*), count(*) FILTER (starts_with(name, 'collective.')) FROM spans{_JOB} AND step = ?",  # noqa: S608
        [key.job, key.attempt, step],
    ).fetchone()
    return StepSize(int(row[0]), int(row[1]))


def read_offsets_ns(connection: Any, key: JobKey) -> dict[str, int]:
    """Return the clock offsets by host that the view `collectives` subtracts."""
    rows = connection.execute(
        "SELECT host_id, offset_ns FROM clock_offsets WHERE job = ? AND coalesce(attempt, 0) = ?",
        [key.job, key.attempt],
    ).fetchall()
    return {str(host): int(offset_ns or 0) for host, offset_ns in rows}


def thinned(steps: IntArray, rows_per_step: int) -> IntArray:
    """Return the last of some steps, as many as may be read of all ranks; at least one if there are any."""
    count = max(MAX_ROWS // max(rows_per_step, 1), 1)
    return steps[-count:]


def read_arrivals(
    connection: Any, key: JobKey, origin: int, steps: IntArray, offset_ns_by_rank: IntArray
) -> Arrivals:
    """Return when every rank came to every collective of some steps.

    Args:
        connection: To the store.
        key: The job.
        origin: Unix ns that times count from.
        steps: Their numbers.
        offset_ns_by_rank: Taken off the times of the view, (ranks,).
    """
    query = f"{_COLUMNS}{_JOB}{_AMONG}"
    bounds = [offset_ns_by_rank.size - 1, int(steps.min()), int(steps.max())]
    values = [key.job, key.attempt, steps.tolist(), *bounds]
    rows = connection.execute(query, values).fetchnumpy()
    rank = integers(rows["rank"])
    _, group = np.unique(np.ma.getdata(rows["call"]), return_inverse=True)
    _, communicator = np.unique(np.ma.getdata(rows["communicator"]), return_inverse=True)
    start_ns = integers(rows["start_unix_ns"]) - offset_ns_by_rank[rank]
    return Arrivals(
        rank=rank,
        step=integers(rows["step"]),
        group=group.astype(np.int64),
        communicator=communicator.astype(np.int64),
        size=integers(rows["size"]),
        start_s=np.asarray((start_ns - origin) / NS, dtype=np.float64),
    )
