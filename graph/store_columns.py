"""DuckDB's columns as arrays: integers, seconds, text, thread states.

Owns what NULL becomes: NaN in times and states, None in text. Rows that cannot be used are dropped and counted.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from rootwalk.graph.columns import Contender, FloatArray, IntArray

NS = 1e9


def without_bad_times(rows: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the rows whose end does not precede their start, and how many do."""
    starts, ends = np.ma.asarray(rows["start_unix_ns"]), np.ma.asarray(rows["end_unix_ns"])
    known = ~(np.ma.getmaskarray(starts) | np.ma.getmaskarray(ends))
    kept = known & (np.asarray(ends.filled(0)) >= np.asarray(starts.filled(0)))
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
    """Return seconds per `ThreadState`, (rows, 6); what runnable time has no owner is UNSPLIT."""
    running, runnable = floats(rows["running_ns"]), floats(rows["runnable_ns"])
    parts = [floats(rows[f"runnable_{part}_ns"]) for part in ("foreign", "own", "idle")]
    owned = np.sum([np.nan_to_num(part) for part in parts], axis=0)
    # A sensor without owners leaves the parts NULL; they count as 0 only beside a known total.
    known = [np.where(np.isnan(part) & ~np.isnan(runnable), 0.0, part) for part in parts]
    unsplit = np.maximum(runnable - owned, 0.0)
    return np.stack([running, *known, unsplit, floats(rows["blocked_ns"])], axis=1) / NS


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


def read_agent_cost(connection: Any, job: str, attempt: int) -> tuple[float | None, int | None]:
    """Return (CPU time of all agents over the time of all rank steps, resident bytes of the largest agent)."""
    row = connection.execute(
        "WITH agents AS (SELECT host_id, max(value) FILTER (name = 'rootwalk.agent.cpu.time') AS cpu_s,"
        " max(value) FILTER (name = 'rootwalk.agent.memory.usage') AS rss FROM metrics WHERE job = $job"
        " GROUP BY host_id), ranks AS (SELECT sum(duration_ns) / 1e9 AS steps_s FROM steps"
        " WHERE job = $job AND coalesce(attempt, 0) = $attempt)"
        " SELECT (SELECT sum(cpu_s) FROM agents) / (SELECT steps_s FROM ranks), (SELECT max(rss) FROM agents)",
        {"job": job, "attempt": attempt},
    ).fetchone()
    if row is None:
        return None, None
    return (
        None if row[0] is None else round(float(row[0]), 5),
        None if row[1] is None else int(row[1]),
    )
