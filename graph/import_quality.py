"""What an import could not read, left out or assumed, kept in the store for the verdicts about its job.

An event of the job, or of none where a file says no job. It goes when a file of that name has been read to its end.
Works on an open connection, like `graph_store`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rootwalk.graph.model import DataQuality, QualityCode
from rootwalk.instrumentation import semconv

__all__ = ["NOTES", "forget_broken_files", "read_broken_files"]

# What imports assumed or left out, by the kind of their note: code of the quality, and its text.
NOTES: Final = {
    "ranks_in_order": (
        QualityCode.RANKS_ASSUMED,
        "{files} files do not say their rank: ranks are their places in the order of import",
    ),
    "rank_zero": (
        QualityCode.RANKS_ASSUMED,
        "{files} file does not say its rank and was imported alone: taken for rank 0",
    ),
    "events_left_out": (
        QualityCode.DROPPED,
        "{count} events of {files} imported files could not be read and were left out",
    ),
    "records_left_out": (
        QualityCode.DROPPED,
        "{count} records of {files} imported files are of another kind and were left out",
    ),
    "texts_repaired": (
        QualityCode.DROPPED,
        "{count} raw control characters or numbers that are none (NaN, Infinity) in {files}"
        " imported files were replaced",
    ),
    "collectives_in_order": (
        QualityCode.MISSING_EDGE,
        "collectives of {files} profiles have no group and no number: matched in the order of each kind",
    ),
    "world_from_log": (
        QualityCode.RANKS_ASSUMED,
        "the log does not say how many ranks the job has: taken as {count}, the largest that it names",
    ),
    "messages_unpaired": (
        QualityCode.MISSING_EDGE,
        "{count} timed out sends or receives do not name the other rank: not known whom they wait for",
    ),
    "lines_cut": (
        QualityCode.DROPPED,
        "{count} watchdog lines are cut off or mixed with others and were left out",
    ),
    "ranks_ambiguous": (
        QualityCode.DUPLICATE_RANK,
        "{count} ranks are named by watchdog lines of several processes: left out",
    ),
}

# Files that are named one by one.
MAX_LISTED: Final = 4
_NAME: Final = f"""attributes ->> '$."{semconv.ROOTWALK_IMPORT_FILE_NAME}"'"""
_KIND: Final = f"""attributes ->> '$."{semconv.ROOTWALK_IMPORT_NOTE_KIND}"'"""
_COUNT: Final = f"""attributes ->> '$."{semconv.ROOTWALK_IMPORT_NOTE_COUNT}"'"""
_NOTE: Final = f"event_name = '{semconv.EVENT_ROOTWALK_IMPORT_NOTE}'"
_EVENT: Final = f"event_name = '{semconv.EVENT_ROOTWALK_IMPORT_BROKEN_FILE}'"


def read_broken_files(connection: Any, job: str | None) -> tuple[DataQuality, ...]:
    """Return what imports of a job, or of none, could not read, left out or assumed; of any job where none is given."""
    rows = connection.execute(
        f"SELECT DISTINCT {_NAME} AS name FROM logs"  # noqa: S608  (our own names)
        f" WHERE {_EVENT} AND (job IS NULL OR job = ? OR ? IS NULL) ORDER BY name",
        [job, job],
    ).fetchall()
    names = [str(name) for (name,) in rows]
    notes = _read_notes(connection, job)
    if not names:
        return notes
    listed = ", ".join(names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
    text = f"{len(names)} imported files could not be read to their end ({listed})"
    return (DataQuality(QualityCode.BROKEN_FILE, text, len(names)), *notes)


def _read_notes(connection: Any, job: str | None) -> tuple[DataQuality, ...]:
    """Return one item for each kind of note about files of a job, with the sum of its counts."""
    rows = connection.execute(
        f"SELECT kind, sum(count)::BIGINT, count(*) FROM (SELECT {_KIND} AS kind, {_NAME} AS name,"  # noqa: S608
        f" max(({_COUNT})::BIGINT) AS count FROM logs WHERE {_NOTE} AND (job IS NULL OR job = ? OR ? IS NULL)"
        " GROUP BY ALL) GROUP BY kind ORDER BY kind",
        [job, job],
    ).fetchall()
    return tuple(
        DataQuality(NOTES[kind][0], NOTES[kind][1].format(count=count, files=files), int(count))
        for kind, count, files in rows
        if kind in NOTES
    )


def forget_broken_files(connection: Any, names: Sequence[str]) -> None:
    """Remove what is told of files that have been read now."""
    connection.execute(
        f"DELETE FROM log_records WHERE {_EVENT} AND {_NAME} IN (SELECT unnest(?))",  # noqa: S608
        [list(names)],
    )
