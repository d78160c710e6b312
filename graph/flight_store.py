"""Records of flight recorders in a store: as JSON text in the body of an event, and back.

Works on an open connection, like `graph_store`.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import Any, Final

from rootwalk.graph.flight_records import Frontier, PendingCall, RankRecord
from rootwalk.instrumentation.errors import ConfigError
from rootwalk.instrumentation.semconv import EVENT_TRAINING_FLIGHT_RECORD

__all__ = [
    "find_flight_job",
    "find_last_attempt",
    "pending_query",
    "read_flight_records",
    "to_text",
]

logger = logging.getLogger(__name__)

_QUERY: Final = (
    "SELECT rank, body ->> '$' AS record FROM logs"  # noqa: S608  (our own name)
    f" WHERE event_name = '{EVENT_TRAINING_FLIGHT_RECORD}' AND job = ? AND coalesce(attempt, 0) = ?"
    " AND rank IS NOT NULL ORDER BY rank, record"
)


def pending_query(job: str, rank: int) -> str:
    """Return the query that tells how many unfinished calls a rank has."""
    name = job.replace("'", "''")
    return (
        "SELECT json_array_length(CAST(body ->> '$' AS JSON), '$.pending') FROM logs"  # noqa: S608
        f" WHERE event_name = '{EVENT_TRAINING_FLIGHT_RECORD}' AND job = '{name}' AND rank = {rank}"
    )


def to_text(record: RankRecord) -> str:
    """Return a record as JSON."""
    return json.dumps(asdict(record), separators=(",", ":"))


def from_text(text: str) -> RankRecord:
    """Return the record that `to_text` has made text of."""
    value = json.loads(text)
    frontiers = [
        Frontier(**{**item, "members": tuple(item["members"])}) for item in value["frontiers"]
    ]
    pending = [
        PendingCall(**{**item, "frames": tuple(item["frames"])}) for item in value["pending"]
    ]
    value.update(
        frontiers=tuple(frontiers),
        pending=tuple(pending),
        last_frames=tuple(value["last_frames"]),
    )
    return RankRecord(**value)


def find_flight_job(connection: Any, job: str | None) -> tuple[str, int] | None:
    """Return the job and attempt whose hang is told by flight recorders, None without any.

    Args:
        connection: Of the store.
        job: Which job; None for the store's only one.

    Raises:
        ConfigError: If the store has several jobs, one of them with records, and none is named.
    """
    rows = connection.execute(
        "SELECT job, max(coalesce(attempt, 0)) FROM logs WHERE event_name = ? AND job IS NOT NULL"
        " GROUP BY job ORDER BY job",
        [EVENT_TRAINING_FLIGHT_RECORD],
    ).fetchall()
    chosen = [row for row in rows if job in (None, row[0])]
    others = connection.execute("SELECT DISTINCT job FROM jobs WHERE ranks > 0").fetchall()
    names = sorted({str(row[0]) for row in [*chosen, *others]})
    if chosen and job is None and len(names) > 1:
        listed = ", ".join(f'"{name}"' for name in names)
        raise ConfigError(
            f"cannot choose a job: saw {len(names)} in the store ({listed}); needs one",
            hint=f"name it: --job {chosen[0][0]}",
        )
    return (str(chosen[0][0]), int(chosen[0][1])) if chosen else None


def find_last_attempt(connection: Any, job: str) -> int | None:
    """Return the last attempt of a job with steps, None without any."""
    rows = connection.execute("SELECT max(coalesce(attempt, 0)) FROM steps WHERE job = ?", [job])
    (last,) = rows.fetchone()
    return None if last is None else int(last)


def read_flight_records(
    connection: Any, job: str, attempt: int
) -> tuple[list[RankRecord], list[int]]:
    """Return one record a rank, and the ranks of which there were several that differ: none of theirs is used."""
    rows = connection.execute(_QUERY, [job, attempt]).fetchall()
    texts: dict[int, set[str]] = {}
    for rank, text in rows:
        texts.setdefault(int(rank), set()).add(text)
    records = []
    for rank, found in texts.items():
        if len(found) == 1:
            try:
                records.append(from_text(min(found)))
            except (AttributeError, KeyError, TypeError, ValueError):
                logger.warning("the record of rank %d is not one of this version's: left out", rank)
    return records, sorted(rank for rank, found in texts.items() if len(found) > 1)
