"""Communication records of a job in a store, for one that has no steps.

Works on an open connection, like `graph_store`. Rows without a duration are kept: they say who was there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rootwalk.graph.columns import IntArray, RankRow
from rootwalk.graph.flows.rows import FlowRows
from rootwalk.graph.job_choice import JobKey, choose_job
from rootwalk.graph.model import DataQuality, QualityCode
from rootwalk.graph.store_columns import (
    NS,
    floats,
    integers,
    read_doubled_ranks,
    tell_doubled_ranks,
)
from rootwalk.instrumentation.semconv import COLLECTIVE_DEVICE_TIME, COLLECTIVE_ROOT

__all__ = ["FlowRecords", "find_flow_job", "make_records", "read_flow"]

# The last records of a job are read: some 300 bytes of memory each.
MAX_ROWS: Final = 4_000_000

_FUNCTION: Final = re.compile(r"-[A-Z][A-Za-z0-9]*$")

_COLUMNS: Final = (
    "SELECT v.rank, v.communicator_id, coalesce(v.communicator_name, v.communicator_id) AS name, v.sequence,"  # noqa: S608
    " v.operation, coalesce(v.communicator_size, 0) AS size, coalesce(v.bytes, 0) AS bytes,"
    " coalesce(v.is_point_to_point, false) AS is_message, v.start_unix_ns, v.end_unix_ns, v.is_end_known,"
    f" TRY_CAST(s.attributes ->> '$.\"{COLLECTIVE_DEVICE_TIME}\"' AS DOUBLE) AS device_s,"
    f" TRY_CAST(s.attributes ->> '$.\"{COLLECTIVE_ROOT}\"' AS BIGINT) AS peer"
    " FROM collectives v JOIN spans s ON s.trace_id = v.trace_id AND s.span_id = v.span_id"
    " WHERE v.job = ? AND coalesce(v.attempt, 0) = ? AND v.end_unix_ns >= v.start_unix_ns"
    " AND v.operation IS NOT NULL AND v.end_unix_ns >= ?"
    " ORDER BY v.rank, v.communicator_id, v.sequence, v.end_unix_ns, v.span_id"
)


@dataclass(frozen=True, slots=True)
class FlowRecords:
    """What a store has of a job without steps; `labels` are the communicators' names, by number."""

    key: JobKey
    ranks: tuple[RankRow, ...]
    rows: FlowRows
    labels: tuple[str, ...]
    quality: tuple[DataQuality, ...]
    doubled: frozenset[int]

    def with_quality(self, items: tuple[DataQuality, ...]) -> FlowRecords:
        """Return the same with what else is wrong; ranks without a record it tells by itself."""
        others = tuple(
            item
            for item in items
            if item.code != QualityCode.RANK_MISSING and item not in self.quality
        )
        return replace(self, quality=(*self.quality, *others))


def find_flow_job(connection: Any, job: str | None) -> JobKey | None:
    """Return the job to judge by its communication: it has collectives, and no step; None if it is none.

    Raises:
        ConfigError: If the job cannot be chosen.
    """
    key = choose_job(connection, job)
    if key is None:
        return None
    owner = [key.job, key.attempt]
    steps, collectives = connection.execute(
        "SELECT (SELECT count(*) FROM (SELECT 1 FROM steps WHERE job = ? AND coalesce(attempt, 0) = ? LIMIT 1)),"
        " (SELECT count(*) FROM (SELECT 1 FROM collectives WHERE job = ? AND coalesce(attempt, 0) = ? LIMIT 1))",
        [*owner, *owner],
    ).fetchone()
    return key if collectives and not steps else None


def read_flow(connection: Any, key: JobKey) -> FlowRecords:
    """Return the communication records of a job."""
    owner = [key.job, key.attempt]
    (count,) = connection.execute(
        "SELECT count(*) FROM collectives WHERE job = ? AND coalesce(attempt, 0) = ?", owner
    ).fetchone()
    since = 0
    if count > MAX_ROWS:
        (since,) = connection.execute(
            "SELECT CAST(quantile_disc(end_unix_ns, ?) AS BIGINT) FROM collectives"
            " WHERE job = ? AND coalesce(attempt, 0) = ?",
            [1.0 - MAX_ROWS / count, *owner],
        ).fetchone()
    columns = connection.execute(_COLUMNS, [*owner, since]).fetchnumpy()
    return make_records(connection, key, columns)


def make_records(connection: Any, key: JobKey, columns: dict[str, Any]) -> FlowRecords:
    """Return records, with what the store has of their ranks.

    Args:
        connection: Of the store.
        key: The job.
        columns: Arrays by name, those that `read_flow` reads.
    """
    owner = [key.job, key.attempt]
    rows, labels = _rows(columns)
    ranks = connection.execute(
        "SELECT rank, host_id, host_name, pid FROM ranks WHERE job = ? AND coalesce(attempt, 0) = ? ORDER BY rank",
        owner,
    ).fetchall()
    doubled = read_doubled_ranks(connection, key.job, key.attempt)
    return FlowRecords(
        key=key,
        ranks=tuple(
            RankRow(int(r[0]), str(r[1] or "unknown"), r[2], None if r[3] is None else int(r[3]))
            for r in ranks
        ),
        rows=rows,
        labels=labels,
        quality=tuple(tell_doubled_ranks(doubled)),
        doubled=frozenset(doubled),
    )


def _rows(columns: dict[str, Any]) -> tuple[FlowRows, tuple[str, ...]]:
    start, end = integers(columns["start_unix_ns"]), integers(columns["end_unix_ns"])
    origin = int(start.min()) if start.size else 0
    is_known = np.asarray(np.ma.asarray(columns["is_end_known"]).filled(True), dtype=np.bool_)
    device_s = floats(columns["device_s"])
    # Without the device's own time, from the call to the end; where the end is not known, nobody knows.
    called_s = np.where(is_known, (end - start) / NS, np.nan)
    ids = [str(name) for name in columns["communicator_id"]]
    is_message = np.asarray(np.ma.asarray(columns["is_message"]).filled(False), dtype=np.bool_)
    series, _ = _numbers([f"{name}|{m}" for name, m in zip(ids, is_message, strict=True)])
    # NCCL counts the calls of each function apart: an imported id is the communicator's with the function.
    communicator, communicators = _numbers([_FUNCTION.sub("", name) for name in ids])
    operation, operations = _numbers([str(name) for name in columns["operation"]])
    names = dict(zip(communicator.tolist(), map(str, columns["name"]), strict=True))
    rows = FlowRows(
        rank=integers(columns["rank"]),
        communicator=communicator,
        series=series,
        sequence=integers(columns["sequence"]),
        operation=operation,
        size=integers(columns["size"]),
        size_bytes=integers(columns["bytes"]),
        duration_s=np.where(np.isfinite(device_s), device_s, called_s),
        end_s=(end - origin) / NS,
        is_end_known=is_known,
        is_message=is_message,
        peer=np.asarray(np.ma.asarray(columns["peer"]).filled(-1), dtype=np.int64),
        operations=operations,
        communicators=communicators,
        origin_unix_ns=origin,
    )
    return rows, tuple(names[number] for number in range(len(communicators)))


def _numbers(names: list[str]) -> tuple[IntArray, tuple[str, ...]]:
    """Return a number for each name, by their order, and the names."""
    known = sorted(set(names))
    number = {name: index for index, name in enumerate(known)}
    return np.array([number[name] for name in names], dtype=np.int64), tuple(known)
