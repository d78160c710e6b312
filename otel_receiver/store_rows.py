"""Column batches into tables, in one transaction with the journal's progress.

It is given a connection and opens nothing. Spans that were received within the last hour are left out.
"""

from __future__ import annotations

from typing import Any, Final

from rootwalk.otel_receiver.columns import ColumnBatch, ColumnType, Scalar

__all__ = ["DUPLICATE_WINDOW_NS", "read_progress", "save_records"]

# Contract section 3: a span that is sent again within an hour is stored once. Exporters give up after minutes.
DUPLICATE_WINDOW_NS: Final = 3_600_000_000_000


def save_records(
    connection: Any, spans: ColumnBatch, metrics: ColumnBatch, segment: int, end_bytes: int
) -> int:
    """Store both batches and that the journal is stored up to (segment, end_bytes), all or nothing.

    Returns:
        Spans that were not stored because they were there.

    Raises:
        duckdb.Error: If the database refuses; nothing is stored then.
    """
    connection.begin()
    try:
        duplicates = _insert_spans(connection, spans) if spans.row_count else 0
        if metrics.row_count:
            _insert(connection, "metric_records", _arrow_table(metrics))
        connection.execute(
            "UPDATE journal_progress SET segment = ?, end_bytes = ?", [segment, end_bytes]
        )
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    return duplicates


def read_progress(connection: Any) -> tuple[int, int]:
    """Return (segment, end_bytes): everything up to there is stored; (0, 0) for a new store."""
    segment, end_bytes = connection.execute(
        "SELECT segment, end_bytes FROM journal_progress"
    ).fetchone()
    return segment, end_bytes


def _insert_spans(connection: Any, spans: ColumnBatch) -> int:
    import pyarrow as pa

    table = _arrow_table(spans)
    keys = list(zip(spans.plain["trace_id"], spans.plain["span_id"], strict=True))
    stored = _stored_keys(connection, table, spans)
    if not stored and len(set(keys)) == len(keys):
        _insert(connection, "span_records", table)
        return 0
    seen: set[tuple[Scalar, Scalar]] = set(stored)
    keep = []
    for key in keys:
        keep.append(key not in seen)
        seen.add(key)
    fresh = table.filter(pa.array(keep))
    _insert(connection, "span_records", fresh)
    return len(keys) - int(fresh.num_rows)


def _stored_keys(connection: Any, table: Any, spans: ColumnBatch) -> list[tuple[str, str]]:
    oldest_unix_ns = min(int(value or 0) for value in spans.grouped["received_unix_ns"])
    connection.register("incoming", table.select(["trace_id", "span_id"]))
    try:
        rows: list[tuple[str, str]] = connection.execute(
            "SELECT DISTINCT stored.trace_id, stored.span_id FROM span_records AS stored "
            "JOIN incoming ON incoming.span_id = stored.span_id AND incoming.trace_id = stored.trace_id "
            "WHERE stored.received_unix_ns >= ?",
            [oldest_unix_ns - DUPLICATE_WINDOW_NS],
        ).fetchall()
    finally:
        connection.unregister("incoming")
    return rows


def _insert(connection: Any, table_name: str, table: Any) -> None:
    connection.register("incoming", table)
    try:
        connection.execute(f"INSERT INTO {table_name} BY NAME SELECT * FROM incoming")  # noqa: S608
    finally:
        connection.unregister("incoming")


def _arrow_table(batch: ColumnBatch) -> Any:
    import pyarrow as pa

    arrow_types = {
        ColumnType.TEXT: pa.string(),
        ColumnType.BIGINT: pa.int64(),
        ColumnType.DOUBLE: pa.float64(),
        ColumnType.BOOLEAN: pa.bool_(),
    }
    columns = {
        name: pa.array(values, arrow_types[batch.types[name]])
        for name, values in batch.plain.items()
    }
    groups = pa.array(batch.groups, pa.int32())
    for name, values in batch.grouped.items():
        dictionary = pa.array(values, arrow_types[batch.types[name]])
        columns[name] = pa.DictionaryArray.from_arrays(groups, dictionary)
    return pa.table(columns)
