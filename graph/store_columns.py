"""DuckDB's columns as arrays: integers, seconds, text, thread states.

Owns what NULL becomes: NaN in times and states, None in text; and the small tables beside the telemetry. Rows that
cannot be used are dropped and counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rootwalk.graph.columns import (
    STATE_OF_LOSS,
    STATE_OF_WAIT,
    WAIT_STATES,
    Contender,
    FloatArray,
    IntArray,
    SensorRow,
    ThreadState,
)
from rootwalk.graph.model import DataQuality, QualityCode

NS = 1e9
# Ranks that a sentence about the data names.
MAX_NAMED_RANKS = 4


def without_bad_times(rows: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the rows whose end does not precede their start, and how many do."""
    starts, ends = np.ma.asarray(rows["start_unix_ns"]), np.ma.asarray(rows["end_unix_ns"])
    known = ~(np.ma.getmaskarray(starts) | np.ma.getmaskarray(ends))
    kept = known & (np.asarray(ends.filled(0)) >= np.asarray(starts.filled(0)))
    if kept.all():
        return rows, 0
    return {name: column[kept] for name, column in rows.items()}, int((~kept).sum())


def without_doubles(rows: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the first row of each rank and step."""
    pairs = np.stack([integers(rows["step"]), integers(rows["rank"])], axis=1)
    _, first = (
        np.unique(pairs, axis=0, return_index=True)
        if len(pairs)
        else (None, np.zeros(0, dtype=np.int64))
    )
    kept = np.sort(first)
    return {name: column[kept] for name, column in rows.items()}, len(pairs) - kept.size


def integers(column: Any) -> IntArray:
    """Return a column as integers, 0 for NULL."""
    return np.asarray(np.ma.asarray(column).filled(0), dtype=np.int64)


def in_order(first: IntArray, second: IntArray) -> IntArray:
    """Return the same number for rows that are equal in both columns, numbered in the order in which they come."""
    if not first.size:
        return np.zeros(0, dtype=np.int64)
    _, one = np.unique(first, return_inverse=True)
    _, other = np.unique(second, return_inverse=True)
    pair = one * (int(other.max()) + 1) + other
    _, row, number = np.unique(pair, return_index=True, return_inverse=True)
    place = np.empty(row.size, dtype=np.int64)
    place[np.argsort(row)] = np.arange(row.size)
    return np.asarray(place[number], dtype=np.int64)


def floats(column: Any) -> FloatArray:
    """Return a column as floats with NaN for NULL."""
    masked = np.ma.asarray(column)
    values = np.asarray(masked.filled(0), dtype=np.float64)
    values[np.ma.getmaskarray(masked)] = np.nan
    return values


def seconds(column: Any, origin: int) -> FloatArray:
    """Return Unix ns as seconds since an origin."""
    return np.asarray((integers(column) - origin) / NS, dtype=np.float64)


def texts(column: Any) -> tuple[str | None, ...]:
    """Return a column as text, None for NULL."""
    masked = np.ma.asarray(column)
    missing = np.ma.getmaskarray(masked)
    return tuple(
        None if gone or v is None else str(v) for v, gone in zip(masked.data, missing, strict=True)
    )


def states(rows: dict[str, Any]) -> FloatArray:
    """Return seconds per `ThreadState`, (rows, states); what runnable time has no owner is UNSPLIT.

    GC, LOADER and what is known of waits are taken out of the running and the blocked time that they are part of; NULL
    takes nothing. Interrupts are part of the running time, reclaim of what is running and then of what is blocked.
    """
    running, runnable = floats(rows["running_ns"]), floats(rows["runnable_ns"])
    blocked = floats(rows["blocked_ns"])
    parts = [floats(rows[f"runnable_{part}_ns"]) for part in ("foreign", "own", "idle")]
    owned = np.sum([np.nan_to_num(part) for part in parts], axis=0)
    # A sensor without owners leaves the parts NULL; they count as 0 only beside a known total.
    known = [np.where(np.isnan(part) & ~np.isnan(runnable), 0.0, part) for part in parts]
    unsplit = np.maximum(runnable - owned, 0.0)
    # The hooks know the collector's time also where no sensor watches the thread.
    waited, lost = _waits(rows, STATE_OF_WAIT), _waits(rows, STATE_OF_LOSS)
    for taken in lost:
        np.minimum(taken, np.nan_to_num(running), out=taken)
        running = running - taken
    told = floats(rows["gc_ns"])
    collecting = np.where(np.isnan(running), told, np.minimum(told, running))
    loading = np.minimum(floats(rows["blocked_loader_running_ns"]), blocked)
    left = blocked - np.nan_to_num(loading)
    waits = []
    for told_ns in (floats(rows["blocked_loader_files_ns"]), *waited):
        waits.append(np.minimum(np.nan_to_num(told_ns), left))
        left = left - waits[-1]
    columns = [
        running - np.nan_to_num(collecting),
        *known,
        unsplit,
        left,
        collecting,
        loading,
        waits[0],
        *(np.asarray(waits[1:]) + lost),
    ]
    return np.stack(columns, axis=1) / NS


def _waits(rows: dict[str, Any], state_of: Mapping[str, ThreadState]) -> FloatArray:
    """Return how long what held each thread up, ns, in the order of `WAIT_STATES`, (states, rows)."""
    kinds, times = rows["wait_kinds"], rows["wait_times"]
    found = np.zeros((len(WAIT_STATES), len(kinds)))
    for row, (told, waited) in enumerate(zip(kinds, times, strict=True)):
        for kind, waited_s in zip(told, waited, strict=False):
            state = state_of.get(kind)
            if state is not None:
                found[WAIT_STATES.index(state), row] += float(waited_s) * NS
    return found


def read_contenders(
    listed: str | None, pid: Any, name: Any, nanoseconds: Any
) -> tuple[Contender, ...]:
    """Return the processes of one stall: the listed ones, else the one that ran longest."""
    items = json.loads(listed) if listed else None
    if items:
        return tuple(
            Contender(int(i["pid"]), str(i.get("name") or i["pid"]), float(i.get("ns") or 0) / NS)
            for i in items
        )
    if pid is None:
        return ()
    return (Contender(int(pid), str(name or pid), float(nanoseconds or 0) / NS),)


def read_sensors(connection: Any, job: str) -> tuple[SensorRow, ...]:
    """Return the last known state of every sensor that watched a job."""
    rows = connection.execute(
        "SELECT coalesce(host_name, host_id, 'unknown'), sensor, status, reason FROM sensors"
        " WHERE (job = ? OR job IS NULL) AND sensor IS NOT NULL ORDER BY 1, 2",
        [job],
    ).fetchall()
    return tuple(SensorRow(str(r[0]), str(r[1]), str(r[2]), r[3]) for r in rows)


def read_cpu_limits(connection: Any, job: str, attempt: int) -> dict[int, float]:
    """Return the last CPU limit that each rank's control group was seen with, in CPUs."""
    rows = connection.execute(
        "SELECT rank, arg_max(value, unix_ns) FROM metric_states WHERE name = 'training.cgroup.cpu.limit' AND job = ?"
        " AND coalesce(attempt, 0) = ? AND rank IS NOT NULL GROUP BY rank ORDER BY rank",
        [job, attempt],
    ).fetchall()
    return {int(rank): float(limit) for rank, limit in rows}


def read_doubled_ranks(connection: Any, job: str, attempt: int) -> dict[int, int]:
    """Return the ranks that more than one process claims to be, and how many do.

    Two jobs of one name look like this: spans of the same rank and step have the same id, and the first is kept. When
    all steps of one of them were sent first, only stalls and metrics tell of the other.
    """
    rows = connection.execute(
        "SELECT rank, count(DISTINCT (coalesce(host_id, ''), pid)) AS processes FROM rank_processes"
        " WHERE job = ? AND coalesce(attempt, 0) = ? GROUP BY rank HAVING processes > 1 ORDER BY rank",
        [job, attempt],
    ).fetchall()
    return {int(rank): int(processes) for rank, processes in rows}


def tell_doubled_ranks(processes_by_rank: dict[int, int]) -> list[DataQuality]:
    """Return what to say about ranks that several processes reported; nothing without any."""
    if not processes_by_rank:
        return []
    shown = list(processes_by_rank.items())[:MAX_NAMED_RANKS]
    named = ", ".join(f"rank {rank} by {count}" for rank, count in shown)
    more = ", …" if len(processes_by_rank) > MAX_NAMED_RANKS else ""
    count = len(processes_by_rank)
    text = (
        f"{count} rank{' was' if count == 1 else 's were'} reported by more than one process ({named}{more}):"
        " two jobs with one id, or one that was started again; their steps are mixed"
    )
    return [DataQuality(QualityCode.DUPLICATE_RANK, text, len(processes_by_rank))]
