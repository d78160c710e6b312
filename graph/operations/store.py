"""Read a job's operations from the store's view `operations`.

Works on an open connection, like `graph_store`. Rows that end before they start are left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rootwalk.graph.columns import IntArray
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.model import DataQuality, QualityCode
from rootwalk.graph.operations.arrays import NOT_KNOWN, Operations, numbered
from rootwalk.graph.store_columns import NS, integers, without_bad_times

__all__ = ["WindowTimes", "has_operations", "read_operations", "read_step_size", "read_times"]

# More ranks, stages, replicas or operations of one type in a step than any job has.
MAX_NUMBER: Final = 1 << 24

# Whether there are operations is asked of so many ranks: of ten thousand it would take longer than the answer is worth.
ASKED_RANKS: Final = 8

_COLUMNS: Final = (
    "SELECT step, rank, coalesce(replica, -1) AS replica, coalesce(stage, -1) AS stage,"
    " list_position(?, operation_type) - 1 AS type, list_position(?, coalesce(phase, '')) - 1 AS phase,"
    " coalesce(operation_sequence, 0) AS operation_sequence, coalesce(micro_batch, -1) AS micro_batch,"
    " CASE WHEN communicator_id <> '' THEN hash(communicator_id) END AS communicator,"
    " coalesce(communicator_size, 0) AS size, coalesce(sequence, -1) AS sequence,"
    " coalesce(is_point_to_point, false) AS is_message, coalesce(collective, '') = 'send' AS is_send,"
    " start_unix_ns, end_unix_ns FROM operations"
)
_JOB: Final = " WHERE job = ? AND coalesce(attempt, 0) = ?"


def has_operations(connection: Any, key: JobKey, last: int) -> bool:
    """Return whether all operations of a job are recorded: whether some of its ranks have some in its last step."""
    ranks = f"SELECT rank FROM ranks{_JOB} ORDER BY rank LIMIT {ASKED_RANKS}"  # noqa: S608  (our own words)
    query = f"SELECT 1 FROM operations{_JOB} AND step = ? AND rank IN ({ranks}) LIMIT 1"  # noqa: S608
    values = [key.job, key.attempt, last, key.job, key.attempt]
    return connection.execute(query, values).fetchone() is not None


def read_step_size(connection: Any, key: JobKey, last: int) -> int:
    """Return how many operations the fuller of a job's last two steps has; the very last may have been cut off."""
    query = f"SELECT count(*) FROM operations{_JOB} AND step = ?"  # noqa: S608
    values = [[key.job, key.attempt, step] for step in (last, last - 1)]
    return max(int(connection.execute(query, one).fetchone()[0]) for one in values)


def read_operations(
    connection: Any, key: JobKey, steps: tuple[int, int]
) -> tuple[Operations, tuple[DataQuality, ...]]:
    """Return the operations of steps first to last; times from the first start of their step."""
    where = f"{_JOB} AND step BETWEEN ? AND ?"
    values = [key.job, key.attempt, *steps]
    names = f"SELECT DISTINCT operation_type, coalesce(phase, '') FROM operations{where}"  # noqa: S608  (our own words)
    named = connection.execute(names, values).fetchall()
    types, phases = (
        (tuple(sorted({str(one) for one in column})) for column in zip(*named, strict=True))
        if named
        else ((), ())
    )
    rows = connection.execute(_COLUMNS + where, [list(types), list(phases), *values]).fetchnumpy()
    rows, bad_times = without_bad_times(rows)
    rows, strange = _without_strange_numbers(rows)
    quality: tuple[DataQuality, ...] = ()
    if bad_times:
        text = f"{bad_times} operations end before they start"
        quality = (DataQuality(QualityCode.BAD_TIME, text, bad_times),)
    if strange:
        text = f"{strange} operations of ranks, stages or numbers that cannot be"
        quality = (*quality, DataQuality(QualityCode.RANK_MISSING, text, strange))
    step = integers(rows["step"])
    begin = _first_starts(step, integers(rows["start_unix_ns"]))
    return (
        Operations(
            step=step,
            rank=integers(rows["rank"]),
            replica=integers(rows["replica"]),
            stage=integers(rows["stage"]),
            type=integers(rows["type"]),
            phase=integers(rows["phase"]),
            sequence=integers(rows["operation_sequence"]),
            micro_batch=integers(rows["micro_batch"]),
            group=_groups(step, rows["communicator"], integers(rows["sequence"])),
            size=integers(rows["size"]),
            is_message=np.asarray(rows["is_message"], dtype=np.bool_),
            is_send=np.asarray(rows["is_send"], dtype=np.bool_),
            start_s=(integers(rows["start_unix_ns"]) - begin) / NS,
            end_s=(integers(rows["end_unix_ns"]) - begin) / NS,
            types=types,
            phases=phases,
        ),
        quality,
    )


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """When the first step began and the last ended, Unix ns; trace and span of each step, its first rank's."""

    start_unix_ns: int | None
    end_unix_ns: int | None
    ids_by_step: dict[int, tuple[str | None, str | None]]


def read_times(connection: Any, key: JobKey, steps: tuple[int, int]) -> WindowTimes:
    """Return the times of steps first to last."""
    rows = connection.execute(
        "SELECT step, min(start_unix_ns), max(end_unix_ns), arg_min(trace_id, rank), arg_min(span_id, rank)"
        " FROM steps WHERE job = ? AND coalesce(attempt, 0) = ? AND step BETWEEN ? AND ?"
        " GROUP BY step ORDER BY step",
        [key.job, key.attempt, *steps],
    ).fetchall()
    return WindowTimes(
        rows[0][1] if rows else None,
        rows[-1][2] if rows else None,
        {int(step): (trace, span) for step, _, _, trace, span in rows},
    )


def _without_strange_numbers(rows: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the rows whose numbers an array can be as long as, and how many others there are."""
    kept = np.ones(rows["rank"].size, dtype=np.bool_)
    for name, least in (("rank", 0), ("replica", -1), ("stage", -1), ("operation_sequence", 0)):
        number = integers(rows[name])
        kept &= (number >= least) & (number < MAX_NUMBER)
    if kept.all():
        return rows, 0
    return {name: column[kept] for name, column in rows.items()}, int((~kept).sum())


def _first_starts(step: IntArray, start_ns: IntArray) -> IntArray:
    _, number = numbered(step)
    first = np.full(int(number.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, number, start_ns)
    return np.asarray(first[number], dtype=np.int64)


def _groups(step: IntArray, communicator: Any, sequence: IntArray) -> IntArray:
    """Return the number of each operation's group: its step, communicator and the number that all members give it."""
    result = np.full(step.size, NOT_KNOWN, dtype=np.int64)
    members = np.flatnonzero(~np.ma.getmaskarray(communicator))
    if members.size:
        named = np.asarray(np.ma.getdata(communicator))[members]
        _, name, number = np.unique(named, return_index=True, return_inverse=True)
        # In the order in which they come, for a hash has none.
        place = np.argsort(np.argsort(name))
        _, result[members] = numbered(step[members], place[number], sequence[members])
    return result
