"""Files that an import could not read, kept in the store so that every verdict about their job tells of them.

An event of the job, or of none where a file says no job. It goes when a file of that name has been read to its end.
Works on an open connection, like `graph_store`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rootwalk.graph.model import DataQuality, QualityCode
from rootwalk.instrumentation import semconv

__all__ = ["forget_broken_files", "read_broken_files"]

# Files that are named one by one.
MAX_LISTED: Final = 4
_NAME: Final = f"""attributes ->> '$."{semconv.ROOTWALK_IMPORT_FILE_NAME}"'"""
_EVENT: Final = f"event_name = '{semconv.EVENT_ROOTWALK_IMPORT_BROKEN_FILE}'"


def read_broken_files(connection: Any, job: str | None) -> tuple[DataQuality, ...]:
    """Return an item if files of a job, or of none, could not be read; of any job where none is given."""
    rows = connection.execute(
        f"SELECT DISTINCT {_NAME} AS name FROM logs"  # noqa: S608  (our own names)
        f" WHERE {_EVENT} AND (job IS NULL OR job = ? OR ? IS NULL) ORDER BY name",
        [job, job],
    ).fetchall()
    names = [str(name) for (name,) in rows]
    if not names:
        return ()
    listed = ", ".join(names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
    text = f"{len(names)} imported files could not be read to their end ({listed})"
    return (DataQuality(QualityCode.BROKEN_FILE, text, len(names)),)


def forget_broken_files(connection: Any, names: Sequence[str]) -> None:
    """Remove what is told of files that have been read now."""
    connection.execute(
        f"DELETE FROM log_records WHERE {_EVENT} AND {_NAME} IN (SELECT unnest(?))",  # noqa: S608
        [list(names)],
    )
