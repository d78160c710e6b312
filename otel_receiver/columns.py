"""Batches of rows as columns, the form between the decoder and the store.

A column is either plain, one value a row, or grouped: values that all rows of one OTLP scope share (the resource, its
identity) are held once a group, with the group's number a row. A plain column is a list, or an Arrow array where the
compiled decoder made it; no value is a protobuf object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["ColumnBatch", "ColumnType", "Scalar", "Value"]

Scalar = str | int | float | bool | None
Value = Scalar | bytes | Sequence[int]


class ColumnType(StrEnum):
    """Type of a column; the value is DuckDB's word for it."""

    TEXT = "TEXT"
    BIGINT = "BIGINT"
    UBIGINT = "UBIGINT"
    DOUBLE = "DOUBLE"
    BOOLEAN = "BOOLEAN"
    BLOB = "BLOB"
    BIGINTS = "BIGINT[]"


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """Rows for one table.

    Attributes:
        row_count: Length of every plain column and of `groups`.
        types: Type of each column, plain and grouped.
        plain: One value a row by column; None where unknown.
        groups: Number of the group of each row.
        grouped: One value a group by column; None where unknown.
    """

    row_count: int
    types: dict[str, ColumnType]
    plain: dict[str, Any] = field(default_factory=dict)
    groups: Any = ()
    grouped: dict[str, Sequence[Scalar]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Value]]:
        """Return the batch row by row; for tests and small batches."""
        plain = {
            name: values if isinstance(values, Sequence) else values.to_pylist()
            for name, values in self.plain.items()
        }
        return [
            {name: values[row] for name, values in plain.items()}
            | {name: values[self.groups[row]] for name, values in self.grouped.items()}
            for row in range(self.row_count)
        ]

    def to_arrow(self) -> Any:
        """Return the batch as a pyarrow.Table, grouped columns as dictionaries."""
        import pyarrow as pa

        arrow_types = {
            ColumnType.TEXT: pa.string(),
            ColumnType.BIGINT: pa.int64(),
            ColumnType.UBIGINT: pa.uint64(),
            ColumnType.DOUBLE: pa.float64(),
            ColumnType.BOOLEAN: pa.bool_(),
            ColumnType.BLOB: pa.binary(),
            ColumnType.BIGINTS: pa.list_(pa.int64()),
        }
        columns = {
            name: values
            if isinstance(values, pa.Array | pa.ChunkedArray)
            else pa.array(values, arrow_types[self.types[name]])
            for name, values in self.plain.items()
        }
        groups = pa.array(self.groups, pa.int32())
        for name, values in self.grouped.items():
            dictionary = pa.array(values, arrow_types[self.types[name]])
            columns[name] = pa.DictionaryArray.from_arrays(groups, dictionary)
        return pa.table(columns)
