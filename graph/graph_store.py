"""Read a job's telemetry from the public views; write and read the dependency graph and clock offsets.

Owns the SQL of the analysis; small tables are read by `store_columns`. Works on an open DuckDB connection: opening and
locking is the receiver's store. Rows that end before they start, and steps reported twice, are left out and counted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from rootwalk.graph.columns import (
    CollectiveRows,
    IntArray,
    JobData,
    OwnThread,
    PhaseRows,
    ProbeRows,
    RankRow,
    StallRow,
    StepRows,
    WaitRow,
)
from rootwalk.graph.dependencies import DependencyGraph
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.model import (
    DataQuality,
    EdgePayload,
    Evidence,
    NodePayload,
    QualityCode,
)
from rootwalk.graph.store_columns import (
    NS,
    floats,
    in_order,
    integers,
    read_contenders,
    read_cpu_limits,
    read_doubled_ranks,
    read_sensors,
    seconds,
    states,
    tell_doubled_ranks,
    texts,
    without_bad_times,
    without_doubles,
)
from rootwalk.instrumentation import semconv

# A range of step numbers that holds none.
_NO_STEPS = (0, -1)
# Rows of a graph that are written by one statement.
MAX_INSERTED_ROWS = 100


def read_outline(connection: Any, key: JobKey, steps: tuple[int, int]) -> JobData:
    """Return ranks, sensors and the complete steps first to last of a job, without the details inside the steps."""
    ranks = tuple(
        RankRow(int(r[0]), str(r[1] or "unknown"), r[2], None if r[3] is None else int(r[3]))
        for r in _rows(
            connection, key, "SELECT rank, host_id, host_name, pid FROM ranks", "ORDER BY rank"
        )
    )
    rows = _columns(
        connection,
        key,
        "SELECT step, rank, start_unix_ns, end_unix_ns, sensor, trace_id, span_id, running_ns, runnable_ns,"
        " runnable_foreign_ns, runnable_own_ns, runnable_idle_ns, blocked_ns, gc_ns, blocked_loader_running_ns,"
        " loader_running_ns, throttled_ns, blocked_loader_files_ns, wait_kinds, wait_times, wait_min_ns FROM steps",
        "AND is_complete AND step BETWEEN ? AND ? ORDER BY step, rank, start_unix_ns",
        *steps,
    )
    rows, bad_times = without_bad_times(rows)
    rows, doubles = without_doubles(rows)
    starts = integers(rows["start_unix_ns"])
    origin = int(starts.min()) if starts.size else 0
    quality = []
    if bad_times:
        quality.append(
            DataQuality(QualityCode.BAD_TIME, f"{bad_times} spans end before they start", bad_times)
        )
    if doubles:
        text = f"{doubles} steps were reported twice for one rank"
        quality.append(DataQuality(QualityCode.DUPLICATE_RANK, text, doubles))
    doubled = read_doubled_ranks(connection, key.job, key.attempt)
    quality += tell_doubled_ranks(doubled)
    return JobData(
        job=key.job,
        attempt=key.attempt,
        world_size=key.world_size,
        origin_unix_ns=origin,
        ranks=ranks,
        steps=StepRows(
            step=integers(rows["step"]),
            rank=integers(rows["rank"]),
            start_s=seconds(rows["start_unix_ns"], origin),
            end_s=seconds(rows["end_unix_ns"], origin),
            states=states(rows),
            told_wait_s=floats(rows["wait_min_ns"]) / NS,
            sensor=texts(rows["sensor"]),
            trace_id=texts(rows["trace_id"]),
            span_id=texts(rows["span_id"]),
            loader_running_s=floats(rows["loader_running_ns"]) / NS,
            throttled_s=floats(rows["throttled_ns"]) / NS,
        ),
        phases=read_phases(connection, key, origin, _NO_STEPS)[0],
        collectives=read_collectives(connection, key, origin, _NO_STEPS),
        stalls=(),
        sensors=read_sensors(connection, key.job),
        quality=tuple(quality),
        cpu_limit_by_rank=read_cpu_limits(connection, key.job, key.attempt),
        processes_by_doubled_rank=doubled,
    )


def read_phases(
    connection: Any, key: JobKey, origin: int, steps: tuple[int, int], ranks: Sequence[int] = ()
) -> tuple[PhaseRows, int]:
    """Return the phases of steps first to last, and how many were left out for their times; no ranks are all ranks."""
    rows = _columns(
        connection,
        key,
        "SELECT step, rank, phase, start_unix_ns, end_unix_ns, running_ns, runnable_ns, runnable_foreign_ns,"
        " runnable_own_ns, runnable_idle_ns, blocked_ns, gc_ns, blocked_loader_running_ns, blocked_loader_files_ns,"
        " wait_kinds, wait_times, wait_min_ns FROM phases",
        f"AND step BETWEEN ? AND ? {_among(ranks)}ORDER BY rank, start_unix_ns, phase_index",
        *steps,
    )
    rows, bad_times = without_bad_times(rows)
    phases = PhaseRows(
        step=integers(rows["step"]),
        rank=integers(rows["rank"]),
        phase=tuple(str(name) for name in rows["phase"]),
        start_s=seconds(rows["start_unix_ns"], origin),
        end_s=seconds(rows["end_unix_ns"], origin),
        states=states(rows),
        told_wait_s=floats(rows["wait_min_ns"]) / NS,
    )
    return phases, bad_times


def read_probes(
    connection: Any, key: JobKey, steps: tuple[int, int], ranks: Sequence[int] = ()
) -> ProbeRows:
    """Return what the same little work took in steps first to last, where ranks tell."""
    name = semconv.TRAINING_CPU_PROBE_TIME
    rows = _columns(
        connection,
        key,
        f"SELECT step, rank, TRY_CAST(attributes ->> '$.\"{name}\"' AS DOUBLE) AS probe_s FROM span_records",  # noqa: S608
        f"AND name = 'training.rank_step' AND contains(attributes, '{name}') AND step BETWEEN ? AND ?"
        f" {_among(ranks)}ORDER BY rank, step",
        *steps,
    )
    probe_s = floats(rows["probe_s"])
    told = probe_s > 0.0
    return ProbeRows(integers(rows["step"])[told], integers(rows["rank"])[told], probe_s[told])


def read_collectives(
    connection: Any, key: JobKey, origin: int, steps: tuple[int, int], ranks: Sequence[int] = ()
) -> CollectiveRows:
    """Return the collectives of steps first to last on the hosts' own clocks.

    The view subtracts the offsets of an earlier diagnosis; they are put back, so that alignment starts afresh.
    """
    rows = _columns(
        connection,
        key,
        "SELECT v.step, v.rank, v.communicator_id, v.sequence,"
        " coalesce(v.communicator_name, v.communicator_id) AS label,"
        " coalesce(v.is_point_to_point, false) AS p2p, coalesce(v.communicator_size, 0) AS size,"
        " v.start_unix_ns + coalesce(o.offset_ns, 0) AS start_unix_ns,"
        " v.end_unix_ns + coalesce(o.offset_ns, 0) AS end_unix_ns, v.runnable_foreign_ns, v.runnable_own_ns,"
        " v.runnable_idle_ns, v.operation, v.is_end_known"
        " FROM collectives v LEFT JOIN clock_offsets o ON o.job = v.job AND o.host_id = v.host_id"
        " AND o.attempt IS NOT DISTINCT FROM v.attempt",
        f"AND v.step BETWEEN ? AND ? {_among(ranks, 'v.')}"
        "ORDER BY v.rank, v.sequence, v.start_unix_ns, v.communicator_id",
        *steps,
        alias="v.",
    )
    rows, _ = without_bad_times(rows)
    sequence = integers(rows["sequence"])
    communicator = _numbers(rows["communicator_id"], rows["p2p"])
    group = in_order(communicator, sequence)
    return CollectiveRows(
        step=integers(rows["step"]),
        rank=integers(rows["rank"]),
        group=group,
        communicator=communicator,
        sequence=sequence,
        size=integers(rows["size"]),
        start_s=seconds(rows["start_unix_ns"], origin),
        end_s=seconds(rows["end_unix_ns"], origin),
        foreign_s=floats(rows["runnable_foreign_ns"]) / NS,
        own_s=floats(rows["runnable_own_ns"]) / NS,
        idle_s=floats(rows["runnable_idle_ns"]) / NS,
        operation=tuple(str(name) for name in rows["operation"]),
        communicator_name=tuple(str(name) for name in rows["label"]),
        is_end_known=np.asarray(np.ma.asarray(rows["is_end_known"]).filled(True), dtype=np.bool_),
    )


def _numbers(names: Any, is_message: Any) -> IntArray:
    """Return the same number for the same communicator, in the order in which they come."""
    communicators: dict[tuple[str, bool], int] = {}
    pairs = zip(names.tolist(), is_message.tolist(), strict=True)
    numbers = [communicators.setdefault(pair, len(communicators)) for pair in pairs]
    return np.array(numbers, dtype=np.int64)


def read_stalls(
    connection: Any, key: JobKey, origin: int, steps: tuple[int, int], ranks: Sequence[int] = ()
) -> tuple[StallRow, ...]:
    """Return the stalls of steps first to last in order of start."""
    rows = _rows(
        connection,
        key,
        "SELECT step, rank, thread_id, role, state, start_unix_ns, end_unix_ns, cpu, aggressor_kind, aggressor_pid,"
        " aggressor_cgroup, aggressor_name, aggressor_ns, CAST(aggressors AS TEXT), phase, wait_kind, wait_peer,"
        " wait_peer_port, wait_file_system, wait_device, waker_pid, waker_thread_id, waker_name,"
        " own_thread_id, own_thread_name, own_thread_ns, own_threads FROM stalls",
        f"AND step BETWEEN ? AND ? AND end_unix_ns >= start_unix_ns {_among(ranks)}"
        "ORDER BY rank, start_unix_ns, thread_id",
        *steps,
    )
    return tuple(
        StallRow(
            step=int(row[0]),
            rank=int(row[1]),
            thread_id=None if row[2] is None else int(row[2]),
            role=str(row[3]),
            state=str(row[4]),
            start_s=(int(row[5]) - origin) / NS,
            end_s=(int(row[6]) - origin) / NS,
            cpu=None if row[7] is None else int(row[7]),
            aggressor_kind=row[8],
            aggressor_pid=None if row[9] is None else int(row[9]),
            aggressor_cgroup=row[10],
            contenders=read_contenders(row[13], row[9], row[11], row[12]),
            phase=row[14],
            wait=None if row[15] is None else WaitRow(*row[15:23]),
            own_thread=_read_own_thread(row[23:27]),
        )
        for row in rows
    )


def _read_own_thread(row: Sequence[Any]) -> OwnThread | None:
    thread, name, ran_ns, count = row
    if thread is None:
        return None
    return OwnThread(int(thread), str(name or thread), float(ran_ns or 0) / NS, int(count or 1))


def save_clock_offsets(connection: Any, key: JobKey, offset_s_by_host: dict[str, float]) -> None:
    """Replace the clock offsets of one job and attempt; the view `collectives` uses them."""
    connection.execute(
        "DELETE FROM clock_offsets WHERE job = ? AND attempt = ?", [key.job, key.attempt]
    )
    rows = [
        [key.job, key.attempt, host, round(offset_s * NS)]
        for host, offset_s in sorted(offset_s_by_host.items())
    ]
    _insert(connection, "clock_offsets", rows)


_DELETES = (
    "DELETE FROM nodes WHERE job = ? AND attempt = ?",
    "DELETE FROM edges WHERE job = ? AND attempt = ?",
    "DELETE FROM evidence WHERE job = ? AND attempt = ?",
)


def save_graph(
    connection: Any, key: JobKey, graph: DependencyGraph, evidence: tuple[Evidence, ...]
) -> None:
    """Replace the dependency graph and evidence of one job and attempt, in one transaction."""
    connection.execute("BEGIN")
    for delete in _DELETES:
        connection.execute(delete, [key.job, key.attempt])
    owner = [key.job, key.attempt]
    nodes = [
        [*owner, node, payload.kind, payload.label, _json(payload.attributes)]
        for node, payload in graph.nodes()
    ]
    edges = []
    for edge in graph.edges():
        p = edge.payload
        cited = json.dumps(p.evidence_ids)
        edges.append(
            [*owner, edge.source, edge.target, p.kind, p.seconds, cited, _json(p.attributes)]
        )
    rows = []
    for e in evidence:
        found = [e.id, e.signal, e.value, e.unit, e.peers, e.history, e.z]
        rows.append([*owner, *found, e.trace_id, e.span_id, e.query, _json(e.attributes)])
    _insert(connection, "nodes", nodes)
    _insert(connection, "edges", edges)
    _insert(connection, "evidence", rows)
    connection.execute("COMMIT")


def _insert(connection: Any, table: str, rows: list[list[Any]]) -> None:
    """Insert rows, many in a statement: each statement costs more than its rows."""
    for first in range(0, len(rows), MAX_INSERTED_ROWS):
        chosen = rows[first : first + MAX_INSERTED_ROWS]
        marks = ", ".join([f"({', '.join('?' * len(chosen[0]))})"] * len(chosen))
        connection.execute(
            f"INSERT INTO {table} VALUES {marks}",  # noqa: S608  (our own tables)
            [value for row in chosen for value in row],
        )


def load_graph(connection: Any, key: JobKey) -> tuple[DependencyGraph, tuple[Evidence, ...]]:
    """Return the dependency graph and evidence of one job and attempt; edges whose nodes are gone are left out."""
    graph = DependencyGraph()
    owner = [key.job, key.attempt]
    for row in connection.execute(
        "SELECT id, kind, label, CAST(attributes AS TEXT) FROM nodes WHERE job = ? AND attempt = ? ORDER BY id",
        owner,
    ).fetchall():
        graph.add_node(row[0], NodePayload(row[1], row[2], json.loads(row[3])))
    for row in connection.execute(
        "SELECT source_id, target_id, kind, seconds, CAST(evidence_ids AS TEXT), CAST(attributes AS TEXT) FROM edges"
        " WHERE job = ? AND attempt = ? ORDER BY source_id, target_id, kind",
        owner,
    ).fetchall():
        if graph.node(row[0]) is not None and graph.node(row[1]) is not None:
            payload = EdgePayload(row[2], row[3], tuple(json.loads(row[4])), json.loads(row[5]))
            graph.add_edge(row[0], row[1], payload)
    rows = connection.execute(
        "SELECT id, signal, value, unit, peers, history, z, trace_id, span_id, query, CAST(attributes AS TEXT)"
        " FROM evidence WHERE job = ? AND attempt = ? ORDER BY id",
        owner,
    ).fetchall()
    return graph, tuple(_evidence(row) for row in rows)


def _evidence(row: tuple[Any, ...]) -> Evidence:
    id_, signal, value, unit, peers, history, z, trace_id, span_id, query, attributes = row
    return Evidence(
        id_,
        signal,
        value,
        unit,
        peers,
        history,
        z,
        trace_id,
        span_id,
        query,
        json.loads(attributes),
    )


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _where(alias: str = "") -> str:
    return f" WHERE {alias}job = ? AND coalesce({alias}attempt, 0) = ? AND {alias}rank IS NOT NULL "


def _among(ranks: Sequence[int], alias: str = "") -> str:
    listed = ", ".join(str(int(rank)) for rank in ranks)
    return f"AND {alias}rank IN ({listed}) " if listed else ""


def _rows(
    connection: Any, key: JobKey, select: str, rest: str, *values: int
) -> list[tuple[Any, ...]]:
    result: list[tuple[Any, ...]] = connection.execute(
        select + _where() + rest, [key.job, key.attempt, *values]
    ).fetchall()
    return result


def _columns(
    connection: Any, key: JobKey, select: str, rest: str, *values: int, alias: str = ""
) -> dict[str, Any]:
    query = select + _where(alias) + rest
    result: dict[str, Any] = connection.execute(query, [key.job, key.attempt, *values]).fetchnumpy()
    return result
