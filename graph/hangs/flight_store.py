"""Records of flight recorders in a store: as JSON text in the body of an event, and back.

Works on an open connection, like `graph_store`.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
from dataclasses import fields, replace
from typing import Any, Final

from rootwalk.graph.hangs.flight_records import Frontier, PendingCall, RankRecord
from rootwalk.graph.hangs.moments import CLOCK_SLACK_NS, Doubled, find_later
from rootwalk.instrumentation.errors import ConfigError
from rootwalk.instrumentation.semconv import (
    EVENT_TRAINING_FLIGHT_RECORD,
    EVENT_TRAINING_PROCESS_END,
    PROCESS_EXIT_CODE,
    TRAINING_PROCESS_IS_CHILD,
)

__all__ = [
    "FROM_LOG",
    "RecordReader",
    "find_flight_job",
    "find_last_attempt",
    "has_times",
    "pending_query",
    "read_flight_records",
    "read_process_ends",
    "to_text",
]

logger = logging.getLogger(__name__)

_QUERY: Final = (
    "SELECT rank, body ->> '$' AS record, observed_unix_ns FROM logs"  # noqa: S608  (our own name)
    f" WHERE event_name = '{EVENT_TRAINING_FLIGHT_RECORD}' AND job = ? AND coalesce(attempt, 0) = ?"
    " AND rank IS NOT NULL ORDER BY rank, record, observed_unix_ns"
)
# Records that are held as text at once.
_ROWS: Final = 256
# Version of records that are made of a log's lines, not of a dump.
FROM_LOG: Final = "watchdog"


def pending_query(job: str, rank: int) -> str:
    """Return the query that tells how many unfinished calls a rank has."""
    name = job.replace("'", "''")
    return (
        "SELECT json_array_length(CAST(body ->> '$' AS JSON), '$.pending') FROM logs"  # noqa: S608
        f" WHERE event_name = '{EVENT_TRAINING_FLIGHT_RECORD}' AND job = '{name}' AND rank = {rank}"
    )


def to_text(record: RankRecord) -> str:
    """Return a record as JSON, without the time of its file: the same dump gives the same text.

    Ranks are written as runs, and the stacks of its calls once each: `frames` of a call is the place of its own.
    """
    stacks: dict[tuple[str, ...], int] = {}
    frontiers = [{**_fields(f), "members": to_runs(f.members)} for f in record.frontiers]
    for frontier in frontiers:
        if frontier["is_whole"]:
            del frontier["is_whole"]  # as earlier versions wrote it
    pending = [
        {**_fields(call), "frames": stacks.setdefault(call.frames, len(stacks))}
        for call in record.pending
    ]
    for call in pending:
        if not call["place"]:
            del call["place"]
    value = {
        **_fields(record),
        "frontiers": frontiers,
        "pending": pending,
        "over": [
            {k: v for k, v in {**_fields(call), "frames": []}.items() if k != "place"}
            for call in record.over
        ],
        "stacks": list(stacks),
    }
    del value["written_unix_ns"]
    for name in ("over", "last_place"):
        if not value[name]:
            del value[name]
    return json.dumps(value, separators=(",", ":"))


def _fields(item: Frontier | PendingCall | RankRecord) -> dict[str, Any]:
    return {field.name: getattr(item, field.name) for field in fields(item)}


# The dumps of a job tell the same large communicators again and again.
@functools.lru_cache(maxsize=256)
def to_runs(members: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """Return ranks as runs of a first one, a distance and a count, in their order.

    >>> to_runs((0, 4, 8, 9))
    ((0, 4, 3), (9, 1, 1))
    """
    runs: list[tuple[int, int, int]] = []
    start = 0
    while start < len(members):
        end = start + 1
        distance = members[end] - members[start] if end < len(members) else 1
        while end < len(members) and members[end] - members[end - 1] == distance:
            end += 1
        runs.append((members[start], distance, end - start))
        start = end
    return tuple(runs)


class RecordReader:
    """Turns text back into records, which share what is the same in all of them: members, stacks and names."""

    def __init__(self) -> None:
        self._members: dict[tuple[tuple[int, ...], ...], tuple[int, ...]] = {}
        self._frames: dict[tuple[str, ...], tuple[str, ...]] = {}

    def read(self, text: str, written_unix_ns: int | None = None) -> RankRecord:
        """Return the record that `to_text` has made text of.

        Raises:
            AttributeError, LookupError, TypeError, ValueError: If it has not.
        """
        value = json.loads(text)
        stacks = [self._stack(frames) for frames in value.pop("stacks", ())]
        value.update(
            frontiers=tuple(
                Frontier(**{**item, "members": self._ranks(item["members"])})
                for item in value["frontiers"]
            ),
            pending=tuple(self._call(item, stacks) for item in value["pending"]),
            over=tuple(self._call(item, stacks) for item in value.get("over", ())),
            last_frames=self._stack(value["last_frames"]),
            written_unix_ns=written_unix_ns,
        )
        return RankRecord(**value)

    def _call(self, item: dict[str, Any], stacks: list[tuple[str, ...]]) -> PendingCall:
        for name in ("communicator", "operation", "dtype"):
            item[name] = sys.intern(item[name])
        frames = item["frames"]
        # Records of earlier versions have a stack in every call.
        item["frames"] = stacks[frames] if isinstance(frames, int) else self._stack(frames)
        return PendingCall(**item)

    def _stack(self, frames: list[str]) -> tuple[str, ...]:
        stack = tuple(frames)
        return self._frames.setdefault(stack, stack)

    def _ranks(self, listed: list[Any]) -> tuple[int, ...]:
        # Records of earlier versions list every rank.
        runs = tuple(tuple(run) if isinstance(run, list) else (int(run), 1, 1) for run in listed)
        if runs not in self._members:
            self._members[runs] = tuple(
                first + distance * place
                for first, distance, count in runs
                for place in range(count)
            )
        return self._members[runs]


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


def has_times(connection: Any, job: str, attempt: int) -> bool:
    """Return whether the store has a collective of a job, which has times."""
    query = "SELECT 1 FROM collectives WHERE job = ? AND coalesce(attempt, 0) = ? LIMIT 1"
    return connection.execute(query, [job, attempt]).fetchone() is not None


def read_flight_records(
    connection: Any, job: str, attempt: int
) -> tuple[list[RankRecord], Doubled]:
    """Return one record a rank, the later one where a rank has several that differ."""
    reader = RecordReader()
    found: dict[int, list[RankRecord]] = {}
    rows = connection.execute(_QUERY, [job, attempt])
    while pieces := rows.fetchmany(_ROWS):
        for rank, text, written in pieces:
            try:
                record = reader.read(text, written or None)
            except (AttributeError, LookupError, TypeError, ValueError):
                logger.warning("the record of rank %d is not one of this version's: left out", rank)
                continue
            same = found.setdefault(int(rank), [])
            if all(replace(known, written_unix_ns=written or None) != record for known in same):
                same.append(record)
    found = {rank: _dumps_first(records) for rank, records in found.items()}
    chosen = {rank: find_later(records) for rank, records in found.items()}
    several = [rank for rank, records in found.items() if len(records) > 1]
    doubled = Doubled(
        tuple(rank for rank in several if chosen[rank] is not None),
        tuple(rank for rank in several if chosen[rank] is None),
    )
    return [record for record in chosen.values() if record is not None], doubled


def _dumps_first(records: list[RankRecord]) -> list[RankRecord]:
    """Return the records of a rank that are of dumps; those of log lines, which say less, where there is none."""
    return [record for record in records if record.version != FROM_LOG] or records


def read_process_ends(connection: Any, job: str, attempt: int) -> dict[int, bool]:
    """Return the ranks whose process has ended, as the host's sensor tells it: whether with a signal or an error.

    A launcher ends the other ranks when one has failed: bad ends that come later than the first are left out.
    """
    rows = connection.execute(
        "SELECT rank, max(unix_ns), coalesce(arg_max(attributes ->> ?, unix_ns), '') <> '0' FROM logs"
        " WHERE event_name = ? AND job = ? AND coalesce(attempt, 0) = ? AND rank IS NOT NULL"
        " AND (attributes ->> ?) = 'false' GROUP BY rank ORDER BY rank",
        [
            f'$."{PROCESS_EXIT_CODE}"',
            EVENT_TRAINING_PROCESS_END,
            job,
            attempt,
            f'$."{TRAINING_PROCESS_IS_CHILD}"',
        ],
    ).fetchall()
    first_ns = min((ended_ns for _, ended_ns, is_bad in rows if is_bad), default=0)
    return {
        int(rank): bool(is_bad)
        for rank, ended_ns, is_bad in rows
        if not is_bad or ended_ns <= first_ns + CLOCK_SLACK_NS
    }
