"""Resource and scope of a group of records as column values, computed once a group.

Identity that is not of its registered type (a rank that is text) is unknown as a column and stays in the JSON.
"""

from __future__ import annotations

from typing import Any, Final

from rootwalk.instrumentation import semconv
from rootwalk.otel_receiver.any_value import json_attributes
from rootwalk.otel_receiver.columns import ColumnBatch, ColumnType, Scalar

__all__ = ["RESOURCE_ATTRIBUTES", "SENDER_COLUMNS", "RecordColumns", "ResourceColumns"]

# Column and type of each resource attribute that is promoted.
RESOURCE_ATTRIBUTES: Final[dict[str, tuple[str, ColumnType]]] = {
    semconv.TRAINING_JOB_ID: ("job", ColumnType.TEXT),
    semconv.TRAINING_JOB_ATTEMPT: ("attempt", ColumnType.BIGINT),
    semconv.TRAINING_RANK: ("rank", ColumnType.BIGINT),
    semconv.TRAINING_LOCAL_RANK: ("local_rank", ColumnType.BIGINT),
    semconv.TRAINING_WORLD_SIZE: ("world_size", ColumnType.BIGINT),
    semconv.HOST_ID: ("host_id", ColumnType.TEXT),
    semconv.HOST_NAME: ("host_name", ColumnType.TEXT),
    semconv.PROCESS_PID: ("pid", ColumnType.BIGINT),
    semconv.SERVICE_NAME: ("service_name", ColumnType.TEXT),
}
# Those of metrics, logs and profiles; spans have all.
SENDER_COLUMNS: Final = frozenset(
    ("job", "attempt", "rank", "host_id", "host_name", "service_name")
)

_KIND_BY_TYPE: Final = {ColumnType.TEXT: "string_value", ColumnType.BIGINT: "int_value"}


class ResourceColumns:
    """Grouped columns under construction: one group a scope of a request.

    Args:
        names: The columns that the table has, of those in `RESOURCE_ATTRIBUTES`.
    """

    __slots__ = ("grouped", "types")

    def __init__(self, names: frozenset[str]) -> None:
        promoted = [item for item in RESOURCE_ATTRIBUTES.values() if item[0] in names]
        self.types: dict[str, ColumnType] = {
            **dict(promoted),
            "scope_name": ColumnType.TEXT,
            "resource": ColumnType.TEXT,
            "received_unix_ns": ColumnType.BIGINT,
        }
        self.grouped: dict[str, list[Scalar]] = {name: [] for name in self.types}

    def append(self, resource: Any, scope_name: str, received_unix_ns: int) -> int:
        """Add a group and return its number."""
        values: dict[str, Scalar] = {
            "scope_name": scope_name or None,
            "resource": json_attributes(resource.attributes),
            "received_unix_ns": received_unix_ns,
        }
        for attribute in resource.attributes:
            promotion = RESOURCE_ATTRIBUTES.get(attribute.key)
            if promotion is not None:
                kind = attribute.value.WhichOneof("value")
                is_typed = kind == _KIND_BY_TYPE[promotion[1]]
                values[promotion[0]] = getattr(attribute.value, kind) if is_typed else None
        for name, column in self.grouped.items():
            column.append(values.get(name))
        return len(self.grouped["resource"]) - 1


class RecordColumns:
    """Columns of one table under construction, a row a record and a group a scope.

    Args:
        types: The columns beside those of the resource.
    """

    __slots__ = ("_columns", "_groups", "_resources", "_types")

    def __init__(self, types: dict[str, ColumnType]) -> None:
        self._types = types
        self._resources = ResourceColumns(SENDER_COLUMNS)
        self._groups: list[int] = []
        self._columns: dict[str, list[Scalar]] = {name: [] for name in types}

    def batch(self) -> ColumnBatch:
        """Return what was added."""
        return ColumnBatch(
            len(self._groups),
            self._types | self._resources.types,
            dict(self._columns),
            self._groups,
            dict(self._resources.grouped),
        )
