"""Column batches into tables, in one transaction with what says that they are stored.

It is given a connection and opens nothing. Spans that were received within the last hour are left out, and of an import
those that were ever received.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rootwalk.otel_receiver.summaries import update_summaries

__all__ = [
    "DUPLICATE_WINDOW_NS",
    "RECORD_TABLES",
    "copy_tables",
    "find_imported",
    "read_progress",
    "read_store_id",
    "save_imported",
    "save_records",
]

# Contract section 3: a span that is sent again within an hour is stored once. Exporters give up after minutes.
DUPLICATE_WINDOW_NS: Final = 3_600_000_000_000

# A batch of so many rows is several row groups' worth of work for DuckDB's vacuum, which joins its end with the next
# batch's beginning by writing whole row groups again, at the cost of storing them. Small batches need it: without it
# each would leave a row group of its own for ever.
BULK_ROWS: Final = 20_000

# A store remembers how far so many journals were stored: one a receiver that was stopped, so none that is still there.
MAX_JOURNALS: Final = 1000

# Tables with a row for each record that a sender counts.
RECORD_TABLES: Final = frozenset(
    ("span_records", "metric_records", "log_records", "profile_records")
)
_DICTIONARY_TABLES: Final = frozenset(
    ("profile_dictionaries", "profile_stacks", "profile_locations")
)

# The key is a number made of both ids: eight bytes a row to look through instead of two texts. Two spans may have the
# same, so it only raises the suspicion that a span is stored.
_SUSPECTS: Final = """
SELECT (SELECT count(*) - count(DISTINCT span_key) FROM incoming)
     + (SELECT count(*) FROM span_records AS stored
        WHERE stored.received_unix_ns >= ? AND stored.span_key IN (SELECT span_key FROM incoming))
"""
_FRESH: Final = """
WITH numbered AS (
    SELECT *, row_number() OVER () AS place FROM incoming
), sent AS (
    SELECT *, row_number() OVER (PARTITION BY trace_id, span_id ORDER BY place) AS occurrence
    FROM numbered
)
SELECT sent.* EXCLUDE (place, occurrence) FROM sent
WHERE occurrence = 1 AND NOT EXISTS (
    SELECT 1 FROM span_records AS stored
    WHERE stored.received_unix_ns >= ? AND stored.span_key = sent.span_key
        AND stored.trace_id = sent.trace_id AND stored.span_id = sent.span_id)
ORDER BY place
"""


def save_records(
    connection: Any,
    pieces: list[dict[str, Any]],
    segment: int,
    end_bytes: int,
    journal_id: str = "",
) -> int:
    """Store rows and that the journal is stored up to (segment, end_bytes), all or nothing; empties the list.

    Args:
        connection: Open for writing.
        pieces: What is stored one after the other, each an Arrow table for each table that it has rows for.
        segment: The last segment of the journal that they are from.
        end_bytes: The end of their last record there.
        journal_id: Which journal that is; empty for one without an id.

    Returns:
        Spans that were not stored because they were there.

    Raises:
        duckdb.Error: If the database refuses; nothing is stored then.
    """
    with _transaction(connection, pieces):
        duplicates = _insert_pieces(connection, pieces, DUPLICATE_WINDOW_NS)
        _save_progress(connection, segment, end_bytes, journal_id)
    return duplicates


def _save_progress(connection: Any, segment: int, end_bytes: int, journal_id: str) -> None:
    place = [segment, end_bytes, journal_id]
    ((count,),) = connection.execute(
        "UPDATE journal_progress SET segment = ?, end_bytes = ? WHERE journal_id = ?", place
    ).fetchall()
    if count == 0:
        connection.execute("INSERT INTO journal_progress VALUES (?, ?, ?)", place)
        connection.execute(
            "DELETE FROM journal_progress WHERE rowid IN"
            " (SELECT rowid FROM journal_progress ORDER BY rowid DESC OFFSET ?)",
            [MAX_JOURNALS],
        )


def save_imported(
    connection: Any, pieces: list[dict[str, Any]], received_unix_ns_by_id: dict[str, int]
) -> int:
    """Store the rows of requests from files and that these requests are stored, all or nothing; empties the list.

    Args:
        connection: Open for writing.
        pieces: As for `save_records`.
        received_unix_ns_by_id: The ids of the requests, and the time that stands for their arrival.

    Returns:
        Spans that were not stored because they were there, however long ago they came.

    Raises:
        duckdb.Error: If the database refuses; nothing is stored then.
    """
    with _transaction(connection, pieces):
        duplicates = _insert_pieces(connection, pieces, None)
        connection.execute(
            "INSERT INTO imported_requests SELECT unnest(?), unnest(?)",
            [list(received_unix_ns_by_id), list(received_unix_ns_by_id.values())],
        )
    return duplicates


def find_imported(connection: Any, request_ids: list[str]) -> set[str]:
    """Return which of these requests are stored."""
    rows = connection.execute(
        "SELECT request_id FROM imported_requests WHERE request_id IN (SELECT unnest(?))",
        [request_ids],
    ).fetchall()
    return {request_id for (request_id,) in rows}


def read_progress(connection: Any, journal_id: str = "") -> tuple[int, int]:
    """Return (segment, end_bytes): everything up to there of a journal is stored; (0, 0) for a new journal."""
    rows = connection.execute(
        "SELECT segment, end_bytes FROM journal_progress WHERE journal_id = ?", [journal_id]
    ).fetchall()
    return (rows[0][0], rows[0][1]) if rows else (0, 0)


def read_store_id(connection: Any) -> str:
    """Return a store's own id."""
    rows = connection.execute("SELECT store_id FROM store_identity").fetchall()
    return str(rows[0][0]) if rows else ""


def copy_tables(connection: Any, path: Path) -> None:
    """Fill the empty tables of a store in memory with the rows of a store's file.

    Raises:
        duckdb.Error: If the file cannot be read.
    """
    quoted = str(path).replace("'", "''")
    connection.execute(f"ATTACH '{quoted}' AS source (READ_ONLY)")
    # From here on nothing in either file reaches another one.
    connection.execute("SET enable_external_access = false")
    tables = connection.execute(
        "SELECT table_name FROM duckdb_tables() WHERE database_name = 'source'"
    ).fetchall()
    for (name,) in tables:
        connection.execute(f'DELETE FROM "{name}"')  # noqa: S608  (names from our own schema)
        connection.execute(f'INSERT INTO "{name}" BY NAME FROM source."{name}"')
    connection.execute("DETACH source")


@contextlib.contextmanager
def _transaction(connection: Any, pieces: list[dict[str, Any]]) -> Iterator[None]:
    rows: Counter[str] = Counter()
    for piece in pieces:
        rows.update({name: table.num_rows for name, table in piece.items()})
    if any(count >= BULK_ROWS for count in rows.values()):
        connection.execute("SET max_vacuum_tasks = 0")
        connection.execute("SET write_buffer_row_group_count = 1")
    connection.begin()
    try:
        yield
        connection.commit()
    except BaseException:
        # A failed commit may have ended the transaction by itself; what it said is the error to tell.
        with contextlib.suppress(Exception):
            connection.rollback()
        raise


def _insert_pieces(connection: Any, pieces: list[dict[str, Any]], window_ns: int | None) -> int:
    duplicates = 0
    pieces.reverse()
    while pieces:
        piece = pieces.pop()
        # A dictionary's own row last: it is what says that its stacks and locations are stored.
        for table_name in sorted(piece, key=lambda name: name == "profile_dictionaries"):
            if piece[table_name].num_rows:
                duplicates += _insert(connection, table_name, piece[table_name], window_ns)
    return duplicates


def _insert(connection: Any, table_name: str, table: Any, window_ns: int | None) -> int:
    """Insert the rows that are not stored yet and summarise them; return the spans that were."""
    row_count = table.num_rows
    if table_name == "span_records":
        table = _without_duplicates(connection, table, window_ns)
    elif table_name in _DICTIONARY_TABLES:
        table = _without_known_dictionaries(connection, table)
    with _registered(connection, table):
        connection.execute(f"INSERT INTO {table_name} BY NAME FROM incoming")
        update_summaries(connection, table_name)
    return row_count - int(table.num_rows) if table_name == "span_records" else 0


def _without_duplicates(connection: Any, table: Any, window_ns: int | None) -> Any:
    """Return the spans of a batch that are neither stored nor in the batch before; None looks at all that is stored."""
    with _registered(connection, table):
        oldest = connection.execute("SELECT min(received_unix_ns) FROM incoming").fetchall()
        since = [0 if window_ns is None else oldest[0][0] - window_ns]
        if connection.execute(_SUSPECTS, since).fetchall() == [(0,)]:
            return table
        return connection.sql(_FRESH, params=since).to_arrow_table()


def _without_known_dictionaries(connection: Any, table: Any) -> Any:
    """Return the rows of dictionaries that are not stored; a dictionary is stored with all its rows or not at all."""
    with _registered(connection, table):
        return connection.sql(
            "SELECT * FROM incoming ANTI JOIN profile_dictionaries USING (dictionary_id)"
        ).to_arrow_table()


@contextlib.contextmanager
def _registered(connection: Any, table: Any) -> Iterator[None]:
    connection.register("incoming", table)
    try:
        yield
    except BaseException:
        # In a transaction that has failed even this fails, and would hide why.
        with contextlib.suppress(Exception):
            connection.unregister("incoming")
        raise
    connection.unregister("incoming")
