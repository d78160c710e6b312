"""Read what the hops between two ranks count, out of the public views."""

from __future__ import annotations

from typing import Any, Final

from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.serve.route import COUNTERS, Reading, RouteEnd

__all__ = ["WINDOW_S", "read_route"]

# Counters over the last minutes of the job: what was before the slowdown is not news. What stands still is sent once a
# minute, so two minutes have two points of everything.
WINDOW_S: Final = 180

_ENDS = (
    "SELECT r.rank, r.host_id, coalesce(r.host_name, r.host_id) FROM ranks r"
    " WHERE r.job = ? AND coalesce(r.attempt, 0) = ? AND r.rank IN (?, ?)"
)
_LAST = "SELECT max(last_unix_ns) FROM jobs WHERE job = ? AND coalesce(attempt, 0) = ?"
_READINGS = """
SELECT name, host_id, rank,
       coalesce(attributes ->> '$."hw.id"', attributes ->> '$."network.interface.name"',
                attributes ->> '$."hw.name"') AS device,
       arg_min(value, unix_ns), arg_max(value, unix_ns), max(value), any_value(unit)
FROM metrics
WHERE name IN (SELECT unnest(?::TEXT[])) AND host_id IN (?, ?) AND (job = ? OR job IS NULL)
    AND unix_ns BETWEEN ? AND ? AND value IS NOT NULL
GROUP BY name, host_id, rank, device, CAST(attributes AS TEXT)
ORDER BY ALL
"""


def read_route(
    connection: Any, key: JobKey, ranks: tuple[int, int]
) -> tuple[RouteEnd, RouteEnd, tuple[Reading, ...]] | None:
    """Return both ends and the series of their hosts in the last minutes; None where a rank is not in the job."""
    owner = [key.job, key.attempt]
    rows = connection.execute(_ENDS, [*owner, *ranks]).fetchall()
    by_rank = {int(rank): (str(host_id), str(host)) for rank, host_id, host in rows}
    if any(rank not in by_rank for rank in ranks):
        return None
    hosts = [by_rank[rank][0] for rank in ranks]
    last_ns = int(connection.execute(_LAST, owner).fetchone()[0] or 0)
    span = [last_ns - WINDOW_S * 1_000_000_000, last_ns + 1_000_000_000]
    values = [sorted(COUNTERS), *hosts, key.job, *span]
    readings = tuple(
        Reading(name, host, rank, device, float(first), float(last), float(most), unit or "")
        for name, host, rank, device, first, last, most, unit in connection.execute(
            _READINGS, values
        ).fetchall()
    )
    gpu_by_rank = {r.rank: r.device for r in readings if r.rank is not None and _is_gpu(r)}
    first_end, second_end = (
        RouteEnd(rank, *by_rank[rank], gpu_by_rank.get(rank)) for rank in ranks
    )
    return first_end, second_end, readings


def _is_gpu(reading: Reading) -> bool:
    return COUNTERS[reading.name].place in ("gpu", "pcie", "nvlink") and reading.device is not None
