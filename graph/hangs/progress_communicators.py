"""Read how far ranks without progress have come in their communicators: only in those on which the answer depends.

    first    of every communicator in a few numbers: who has come how far, does anybody wait
    then     rows of those in which somebody waits and not all have called the same
    then     of their members that have called less: the communicators in which these wait themselves, and so on

A job of thousands of ranks has thousands of groups in which all wait alike behind one: these are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rootwalk.graph.hangs.live_evidence import CommunicatorProgress
from rootwalk.instrumentation import semconv

__all__ = ["CommunicatorRows", "read_communicators", "read_ended_calls"]

# Who holds up whom is followed so far; a chain of waiting is seldom longer than the kinds of groups of a job.
MAX_ROUNDS: Final = 6
# Where all have called the same everywhere, so many communicators show it.
MAX_EVEN: Final = 8


def _path(attribute: str) -> str:
    return f'$."{attribute}"'


# The last report of each rank in each communicator. DuckDB keeps the table for the rest of the connection's life.
_CREATE: Final = f"""
CREATE OR REPLACE TEMP TABLE live_communicators AS
SELECT rank, communicator, is_message, told,
       TRY_CAST(attributes ->> '{_path(semconv.COLLECTIVE_SEQUENCE)}' AS BIGINT) AS issued,
       coalesce(TRY_CAST(attributes ->> '{_path(semconv.COLLECTIVE_ENDED_SEQUENCE)}' AS BIGINT), 0) AS ended,
       attributes ->> '{_path(semconv.COLLECTIVE_OPERATION)}' AS operation,
       TRY_CAST(attributes ->> '{_path(semconv.COLLECTIVE_SIZE)}' AS BIGINT) AS bytes,
       TRY_CAST(attributes ->> '{_path(semconv.COLLECTIVE_PENDING_TIME)}' AS DOUBLE) AS pending,
       TRY_CAST(attributes ->> '{_path(semconv.COLLECTIVE_COMMUNICATOR_SIZE)}' AS BIGINT) AS size,
       attributes ->> '{_path(semconv.COLLECTIVE_COMMUNICATOR_NAME)}' AS name,
       attributes ->> '{_path(semconv.COLLECTIVE_BACKEND)}' AS backend,
       attributes
FROM (
    SELECT rank, attributes ->> '{_path(semconv.COLLECTIVE_COMMUNICATOR_ID)}' AS communicator,
           coalesce(attributes ->> '{_path(semconv.COLLECTIVE_IS_POINT_TO_POINT)}', 'false') = 'true' AS is_message,
           max(unix_ns) AS told, arg_max(attributes, unix_ns) AS attributes
    FROM log_records
    WHERE event_name = '{semconv.EVENT_TRAINING_COLLECTIVE_PROGRESS}' AND job = $job
          AND coalesce(attempt, 0) = $attempt AND rank IS NOT NULL AND unix_ns BETWEEN $since AND $until
    GROUP BY ALL
)
WHERE communicator IS NOT NULL
"""  # noqa: S608

_OUTLINE: Final = """
SELECT communicator, count(*), max(size), max(name), min(issued), max(issued), min(ended), max(ended),
       count(*) FILTER (pending IS NOT NULL AND issued > ended), count(DISTINCT operation) FILTER (issued > ended)
FROM live_communicators WHERE NOT is_message GROUP BY communicator ORDER BY communicator
"""
_ROWS: Final = """
SELECT rank, communicator, issued, ended, operation, bytes, pending, told, is_message, backend FROM live_communicators
WHERE communicator IN (SELECT unnest($names)) AND issued IS NOT NULL ORDER BY communicator, is_message, rank
"""
_MESSAGES: Final = f"""
SELECT communicator FROM live_communicators WHERE is_message AND pending IS NOT NULL AND issued > ended
GROUP BY communicator ORDER BY max(pending) DESC, communicator LIMIT {MAX_EVEN}
"""  # noqa: S608
_WAITING: Final = """
SELECT DISTINCT communicator FROM live_communicators
WHERE rank IN (SELECT unnest($ranks)) AND pending IS NOT NULL AND issued > ended
"""
_RANKS: Final = f'$."{semconv.COLLECTIVE_COMMUNICATOR_RANKS}"'
_MEMBERS: Final = f"""
SELECT communicator, CAST(any_value(attributes ->> '{_RANKS}.arrayValue.values[*].intValue') AS BIGINT[])
FROM live_communicators
WHERE communicator IN (SELECT unnest($names)) AND json_exists(attributes, '{_RANKS}')
GROUP BY communicator
"""  # noqa: S608


_ENDED_CALLS: Final = """
SELECT rank, operation FROM collectives
WHERE job = $job AND coalesce(attempt, 0) = $attempt AND communicator_id = $name AND sequence = $sequence
      AND NOT coalesce(is_point_to_point, false) AND operation IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class CommunicatorRows:
    """Rows of the communicators that matter, their members and whether these are all, and their names."""

    rows: tuple[CommunicatorProgress, ...]
    members: Mapping[str, tuple[tuple[int, ...], bool]]
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Outline:
    """One communicator in numbers."""

    reports: int
    size: int | None
    is_uneven: bool
    is_waited_in: bool


def read_communicators(
    connection: Any, span: Mapping[str, Any], world_size: int | None
) -> CommunicatorRows:
    """Return the communicators on which it depends who holds up whom.

    Args:
        connection: An open store.
        span: `job`, `attempt`, and `since` and `until` in Unix ns.
        world_size: Ranks of the job; None where not known.
    """
    connection.execute(_CREATE, span)
    outlines: dict[str, _Outline] = {}
    names: dict[str, str] = {}
    for (
        name,
        reports,
        size,
        title,
        low,
        high,
        low_end,
        high_end,
        waiting,
        kinds,
    ) in connection.execute(_OUTLINE).fetchall():
        is_uneven = low != high or low_end != high_end or kinds > 1
        is_uneven = is_uneven or (size is not None and reports < size)
        outlines[name] = _Outline(int(reports), size, bool(is_uneven), waiting > 0)
        names[name] = title or ""
    wanted = {name for name, o in outlines.items() if o.is_waited_in and o.is_uneven}
    if not wanted:
        wanted = set(sorted(name for name, o in outlines.items() if o.is_waited_in)[:MAX_EVEN])
    if not wanted:
        rows_of_messages = connection.execute(_MESSAGES).fetchall()
        wanted = {str(name) for (name,) in rows_of_messages}
        names |= {str(name): names.get(str(name), "") for (name,) in rows_of_messages}
    rows: dict[str, list[CommunicatorProgress]] = {}
    for _ in range(MAX_ROUNDS):
        missing = sorted(wanted - rows.keys())
        if not missing:
            break
        for row in connection.execute(_ROWS, {"names": missing}).fetchall():
            rank, name, issued, ended, operation, size, pending, told, is_message, backend = row
            made = CommunicatorProgress(
                *(int(rank), name, int(issued), int(ended), operation or "", size, pending),
                *(int(told), bool(is_message), backend),
            )
            rows.setdefault(name, []).append(made)
        for name in missing:
            rows.setdefault(name, [])
        behind = sorted({r for name in missing for r in _behind(rows[name])})
        waiting = connection.execute(_WAITING, {"ranks": behind}).fetchall() if behind else []
        wanted |= {str(name) for (name,) in waiting}
    members = _read_members(connection, sorted(rows), rows, outlines, world_size)
    return CommunicatorRows(
        tuple(row for _, known in sorted(rows.items()) for row in known), members, names
    )


def read_ended_calls(
    connection: Any, key: Mapping[str, Any], rows: Iterable[CommunicatorProgress]
) -> dict[tuple[str, int], dict[int, str]]:
    """Return what ranks called under the first number in which others of a communicator wait, and have ended."""
    first: dict[str, int] = {}
    ended: dict[str, int] = {}
    for row in rows:
        if row.is_message:
            continue
        ended[row.communicator] = max(ended.get(row.communicator, 0), row.ended)
        if row.is_pending:
            number = row.ended + 1
            first[row.communicator] = min(first.get(row.communicator, number), number)
    found = {}
    for name, number in first.items():
        if ended[name] >= number:
            asked = {**key, "name": name, "sequence": number}
            called = connection.execute(_ENDED_CALLS, asked).fetchall()
            found[name, number] = {int(rank): str(operation) for rank, operation in called}
    return found


def _behind(rows: list[CommunicatorProgress]) -> set[int]:
    """Return the ranks that have called less than others wait in, or something else than most at the same number."""
    collectives = [row for row in rows if not row.is_message]
    most = max((row.issued for row in collectives if row.is_pending), default=0)
    return {row.rank for row in collectives if row.issued < most}


def _read_members(
    connection: Any,
    names: list[str],
    rows: Mapping[str, list[CommunicatorProgress]],
    outlines: Mapping[str, _Outline],
    world_size: int | None,
) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Return the members of each communicator, and whether they are all of it."""
    told = dict(connection.execute(_MEMBERS, {"names": names}).fetchall()) if names else {}
    found: dict[str, tuple[tuple[int, ...], bool]] = {}
    for name in names:
        size = outlines[name].size if name in outlines else None
        reporting = tuple(sorted({row.rank for row in rows[name]}))
        if told.get(name):
            listed = tuple(int(rank) for rank in told[name])
            found[name] = (listed, size is None or len(listed) == size)
        elif world_size is not None and size == world_size:
            found[name] = (tuple(range(world_size)), True)
        else:
            found[name] = (reporting, size is not None and len(reporting) == size)
    return found
