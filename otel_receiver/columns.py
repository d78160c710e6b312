"""Batches of rows as columns, the form between the decoder and the store.

A column is either plain, one value a row, or grouped: values that all rows of one OTLP scope share (the resource, its
identity) are held once a group, with the group's number a row. No value is a protobuf object or an Arrow object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["ColumnBatch", "ColumnType", "Scalar"]

Scalar = str | int | float | bool | None


class ColumnType(StrEnum):
    """Type of a column; the value is DuckDB's word for it."""

    TEXT = "TEXT"
    BIGINT = "BIGINT"
    DOUBLE = "DOUBLE"
    BOOLEAN = "BOOLEAN"


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
    plain: dict[str, Sequence[Scalar]] = field(default_factory=dict)
    groups: Sequence[int] = ()
    grouped: dict[str, Sequence[Scalar]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Scalar]]:
        """Return the batch row by row; for tests and small batches."""
        return [
            {name: values[row] for name, values in self.plain.items()}
            | {name: values[self.groups[row]] for name, values in self.grouped.items()}
            for row in range(self.row_count)
        ]
