"""Log records of decoded logs requests as columns of the table log_records.

One row a record, events among them (a record with an event name). The body is an AnyValue and stays one: JSON text in
the form of `any_value`, NULL where the record has none.
"""

from __future__ import annotations

from typing import Any, Final

from rootwalk.otel_receiver.any_value import json_attributes, json_value
from rootwalk.otel_receiver.columns import ColumnType
from rootwalk.otel_receiver.resource_columns import RecordColumns
from rootwalk.otel_receiver.span_columns import unix_ns

__all__ = ["LogColumns"]

_TYPES: Final[dict[str, ColumnType]] = {
    "unix_ns": ColumnType.BIGINT,
    "observed_unix_ns": ColumnType.BIGINT,
    "severity_number": ColumnType.BIGINT,
    "severity_text": ColumnType.TEXT,
    "event_name": ColumnType.TEXT,
    "body": ColumnType.TEXT,
    "trace_id": ColumnType.TEXT,
    "span_id": ColumnType.TEXT,
    "flags": ColumnType.BIGINT,
    "dropped_attributes": ColumnType.BIGINT,
    "attributes": ColumnType.TEXT,
}


class LogColumns(RecordColumns):
    """Columns under construction; `append_request` any number of times, then `batch`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_TYPES)

    def append_request(self, request: Any, received_unix_ns: int) -> None:
        """Add every record of a decoded logs request that was received at that time."""
        for resource_logs in request.resource_logs:
            for scope_logs in resource_logs.scope_logs:
                group = self._resources.append(
                    resource_logs.resource, scope_logs.scope.name, received_unix_ns
                )
                self._groups.extend([group] * len(scope_logs.log_records))
                self._append_records(scope_logs.log_records)

    def _append_records(self, records: Any) -> None:
        columns = self._columns
        columns["unix_ns"].extend([unix_ns(r.time_unix_nano) for r in records])
        columns["observed_unix_ns"].extend([unix_ns(r.observed_time_unix_nano) for r in records])
        columns["severity_number"].extend([r.severity_number or None for r in records])
        columns["severity_text"].extend([r.severity_text or None for r in records])
        columns["event_name"].extend([r.event_name or None for r in records])
        columns["body"].extend(
            [json_value(r.body) if r.HasField("body") else None for r in records]
        )
        columns["trace_id"].extend([_hex_id(r.trace_id) for r in records])
        columns["span_id"].extend([_hex_id(r.span_id) for r in records])
        columns["flags"].extend([r.flags for r in records])
        columns["dropped_attributes"].extend([r.dropped_attributes_count for r in records])
        columns["attributes"].extend([json_attributes(r.attributes) for r in records])


def _hex_id(value: bytes) -> str | None:
    """Return an id as hex text; None for none, which senders also write as zeros."""
    return value.hex() if any(value) else None
