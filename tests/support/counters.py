"""Counters of hosts and ranks beside a simulated job, as an agent sends them: a look every 2 s, points every 5 s.

What stands still is left out, but once a minute: as ebpf/unchanged.py does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from rootwalk.instrumentation import semconv
from rootwalk.otel_receiver import store
from support.jobs import NS, START_UNIX_NS

INTERVAL_S, LOOK_S, REPEAT_S = 5.0, 2.0, 60.0


@dataclass(frozen=True)
class Told:
    """One series: `value` gives what the counter is at a time (s since the job began); `rank` None for the host.

    Until `first_s` nothing is told of it.
    """

    name: str
    value: Callable[[float], float]
    host: int = 0
    rank: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    # How far the host's clock is ahead.
    skew_s: float = 0.0
    first_s: float = -1e9


def growing(
    rate: float, begin_s: float, end_s: float = 1e9, before: float = 0.0
) -> Callable[[float], float]:
    """A sum that grows by `rate` a second between two times, and by `before` a second until then."""
    return lambda now: (
        before * min(max(now, 0.0), begin_s) + rate * max(min(now, end_s) - begin_s, 0.0)
    )


def level(before: float, after: float, at_s: float) -> Callable[[float], float]:
    """A level that changes once."""
    return lambda now: after if now >= at_s else before


def rows_of(told: Told, length_s: float, begin_s: float = -65.0) -> list[dict[str, Any]]:
    """Return the rows of `metric_records` of one series."""
    rows: list[dict[str, Any]] = []
    sent: tuple[float, float] | None = None
    time_s = begin_s
    while time_s <= length_s + INTERVAL_S:
        value = float(told.value(time_s // LOOK_S * LOOK_S))
        is_told = time_s // LOOK_S * LOOK_S >= told.first_s
        if is_told and (sent is None or value != sent[0] or time_s - sent[1] >= REPEAT_S):
            sent = value, time_s
            rows.append(_row(told, time_s, value))
        time_s += INTERVAL_S
    return rows


def _row(told: Told, time_s: float, value: float) -> dict[str, Any]:
    definition = semconv.METRICS[told.name]
    return {
        "received_unix_ns": START_UNIX_NS,
        "name": told.name,
        "kind": "gauge" if definition.instrument == "gauge" else "sum",
        "unit": definition.unit,
        "unix_ns": START_UNIX_NS + round((time_s + told.skew_s) * NS),
        "value": value,
        "job": "j1",
        "attempt": None if told.rank is None else 0,
        "rank": told.rank,
        "host_id": f"host-id-{told.host}",
        "host_name": f"host-{told.host}",
        "scope_name": "rootwalk.ebpf",
        "attributes": json.dumps(dict(told.attributes)),
        "resource": "{}",
        "data": "{}",
    }


def add_counters(path: Path, told: tuple[Told, ...], length_s: float) -> None:
    """Put the points of some series into a store."""
    rows = [row for one in told for row in rows_of(one, length_s)]
    if not rows:
        return
    names = sorted(rows[0])
    with store.writing(path) as connection:
        table = pa.table({name: [row[name] for row in rows] for name in names})
        connection.register("incoming", table)
        connection.execute("INSERT INTO metric_records BY NAME SELECT * FROM incoming")
        connection.unregister("incoming")


def tell_sensor(
    path: Path, sensor: str, status: str, host: int, reason: str | None = "SWITCHED_OFF"
) -> None:
    """Say what state a sensor of a host is in."""
    attributes = {
        semconv.ROOTWALK_SENSOR_NAME: sensor,
        semconv.ROOTWALK_SENSOR_STATUS: status,
        semconv.ROOTWALK_SENSOR_TIER: 0,
    }
    if status != "available":
        attributes[semconv.ROOTWALK_SENSOR_REASON] = reason
    with store.writing(path) as connection:
        connection.execute(
            "INSERT INTO metric_states (name, job, host_id, host_name, sensor, attributes, value, max_value, unix_ns)"
            " VALUES (?, 'j1', ?, ?, ?, ?, 1, 1, ?)",
            [
                semconv.METRIC_ROOTWALK_SENSOR_STATE,
                f"host-id-{host}",
                f"host-{host}",
                sensor,
                json.dumps(attributes),
                START_UNIX_NS,
            ],
        )


def add_event(
    path: Path,
    name: str,
    time_s: float,
    host: int,
    rank: int | None,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Put an event of a rank, or of a host, into a store."""
    with store.writing(path) as connection:
        connection.execute(
            "INSERT INTO log_records (received_unix_ns, unix_ns, event_name, body, job, attempt, rank, host_id,"
            " host_name, attributes, resource) VALUES (?, ?, ?, 'null', 'j1', ?, ?, ?, ?, ?, '{}')",
            [
                START_UNIX_NS,
                START_UNIX_NS + round(time_s * NS),
                name,
                None if rank is None else 0,
                rank,
                f"host-id-{host}",
                f"host-{host}",
                json.dumps(attributes or {}),
            ],
        )
