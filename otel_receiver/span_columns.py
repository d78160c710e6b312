"""Spans of decoded trace requests as columns of the table span_records.

The loop over attributes is half of the receiver's time, so it touches each attribute once: JSON text, and where the
key is a known one a (row, value) pair. The pairs become full columns once a batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from rootwalk.instrumentation import semconv
from rootwalk.otel_receiver.any_value import json_attributes, json_string, json_value
from rootwalk.otel_receiver.columns import ColumnBatch, ColumnType, Scalar
from rootwalk.otel_receiver.resource_columns import RESOURCE_ATTRIBUTES, ResourceColumns

__all__ = [
    "FIXED_TYPES",
    "KINDS",
    "MAX_BIGINT",
    "PROMOTED_ATTRIBUTES",
    "SPAN_KEY_BYTES",
    "SPAN_KEY_FACTOR",
    "STATUS_CODES",
    "SpanColumns",
    "enum_name",
    "render_rare",
]

MAX_BIGINT: Final = 2**63 - 1
# A span id of so many bytes and less has a key: itself as a number, xor the last eight bytes of its trace id times this
# factor (2^64 over the golden ratio). Spans that a sender numbers from 1 in each trace have different keys.
SPAN_KEY_BYTES: Final = 8
SPAN_KEY_FACTOR: Final = 0x9E37_79B9_7F4A_7C15

# Typed column of each span attribute that is promoted; a column in ns takes seconds.
PROMOTED_ATTRIBUTES: Final[dict[str, tuple[str, ColumnType]]] = {
    semconv.TRAINING_STEP_NUMBER: ("step", ColumnType.BIGINT),
    semconv.TRAINING_STEP_OUTCOME: ("outcome", ColumnType.TEXT),
    semconv.TRAINING_PHASE: ("phase", ColumnType.TEXT),
    semconv.TRAINING_PHASE_INDEX: ("phase_index", ColumnType.BIGINT),
    semconv.TRAINING_THREAD_SENSOR: ("sensor", ColumnType.TEXT),
    semconv.TRAINING_THREAD_RUNNING_TIME: ("running_ns", ColumnType.BIGINT),
    semconv.TRAINING_THREAD_RUNNABLE_TIME: ("runnable_ns", ColumnType.BIGINT),
    semconv.TRAINING_THREAD_RUNNABLE_FOREIGN_TIME: ("runnable_foreign_ns", ColumnType.BIGINT),
    semconv.TRAINING_THREAD_RUNNABLE_OWN_TIME: ("runnable_own_ns", ColumnType.BIGINT),
    semconv.TRAINING_THREAD_RUNNABLE_IDLE_TIME: ("runnable_idle_ns", ColumnType.BIGINT),
    semconv.TRAINING_THREAD_BLOCKED_TIME: ("blocked_ns", ColumnType.BIGINT),
    semconv.TRAINING_GC_TIME: ("gc_ns", ColumnType.BIGINT),
    semconv.TRAINING_LOADER_RUNNING_TIME: ("loader_running_ns", ColumnType.BIGINT),
    semconv.TRAINING_THREAD_BLOCKED_LOADER_RUNNING_TIME: (
        "blocked_loader_running_ns",
        ColumnType.BIGINT,
    ),
    semconv.TRAINING_CGROUP_THROTTLED_TIME: ("throttled_ns", ColumnType.BIGINT),
    semconv.COLLECTIVE_OPERATION: ("operation", ColumnType.TEXT),
    semconv.COLLECTIVE_COMMUNICATOR_ID: ("communicator_id", ColumnType.TEXT),
    semconv.COLLECTIVE_COMMUNICATOR_NAME: ("communicator_name", ColumnType.TEXT),
    semconv.COLLECTIVE_COMMUNICATOR_SIZE: ("communicator_size", ColumnType.BIGINT),
    semconv.COLLECTIVE_SEQUENCE: ("sequence", ColumnType.BIGINT),
    semconv.COLLECTIVE_SIZE: ("bytes", ColumnType.BIGINT),
    semconv.COLLECTIVE_BACKEND: ("backend", ColumnType.TEXT),
    semconv.COLLECTIVE_IS_POINT_TO_POINT: ("is_point_to_point", ColumnType.BOOLEAN),
    semconv.THREAD_ID: ("thread_id", ColumnType.BIGINT),
    semconv.THREAD_NAME: ("thread_name", ColumnType.TEXT),
    semconv.TRAINING_THREAD_ROLE: ("role", ColumnType.TEXT),
    semconv.TRAINING_THREAD_STATE: ("state", ColumnType.TEXT),
    semconv.CPU_LOGICAL_NUMBER: ("cpu", ColumnType.BIGINT),
    semconv.TRAINING_AGGRESSOR_KIND: ("aggressor_kind", ColumnType.TEXT),
    semconv.TRAINING_AGGRESSOR_PID: ("aggressor_pid", ColumnType.BIGINT),
    semconv.TRAINING_AGGRESSOR_NAME: ("aggressor_name", ColumnType.TEXT),
    semconv.TRAINING_AGGRESSOR_CGROUP: ("aggressor_cgroup", ColumnType.TEXT),
    semconv.TRAINING_AGGRESSOR_TIME: ("aggressor_ns", ColumnType.BIGINT),
}

FIXED_TYPES: Final[dict[str, ColumnType]] = {
    "trace_id": ColumnType.TEXT,
    "span_id": ColumnType.TEXT,
    "span_key": ColumnType.UBIGINT,
    "parent_span_id": ColumnType.TEXT,
    "name": ColumnType.TEXT,
    "kind": ColumnType.TEXT,
    "start_unix_ns": ColumnType.BIGINT,
    "end_unix_ns": ColumnType.BIGINT,
    "status_code": ColumnType.TEXT,
    "status_message": ColumnType.TEXT,
    "trace_state": ColumnType.TEXT,
    "attributes": ColumnType.TEXT,
    "links": ColumnType.TEXT,
    "events": ColumnType.TEXT,
}

KINDS: Final = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
STATUS_CODES: Final = ("UNSET", "OK", "ERROR")
_AGGRESSOR_KEYS: Final = frozenset(
    (
        semconv.TRAINING_AGGRESSOR_PIDS,
        semconv.TRAINING_AGGRESSOR_NAMES,
        semconv.TRAINING_AGGRESSOR_TIMES,
    )
)
_VALUE_KIND: Final = {
    ColumnType.TEXT: "string_value",
    ColumnType.BIGINT: "int_value",
    ColumnType.BOOLEAN: "bool_value",
}


class _SparseColumn:
    """Rows and values of one promoted attribute; `take` stores nothing when the type is wrong."""

    __slots__ = ("is_seconds", "kind", "rows", "values")

    def __init__(self, name: str, column_type: ColumnType) -> None:
        self.kind = _VALUE_KIND[column_type]
        self.is_seconds = name.endswith("_ns")
        self.rows: list[int] = []
        self.values: list[Scalar] = []

    def take(self, row: int, kind: str | None, value: Any) -> None:
        if self.is_seconds:
            value = seconds_to_ns(kind, value)
        elif kind != self.kind:
            return
        self.rows.append(row)
        self.values.append(value)

    def dense(self, row_count: int) -> list[Scalar]:
        column: list[Scalar] = [None] * row_count
        for row, value in zip(self.rows, self.values, strict=True):
            column[row] = value
        return column


def seconds_to_ns(kind: str | None, value: Any) -> int | None:
    """Return a number of seconds as whole ns; None when it is no number or does not fit 64 bits."""
    if kind not in ("double_value", "int_value"):
        return None
    duration_ns = value * 1_000_000_000
    # A NaN compares false, so it is unknown too.
    return round(duration_ns) if abs(duration_ns) < MAX_BIGINT else None


class SpanColumns:
    """Columns under construction; `append_request` any number of times, then `batch`."""

    __slots__ = ("_aggressors", "_fixed", "_groups", "_promoted", "_resources")

    def __init__(self) -> None:
        self._resources = ResourceColumns(frozenset(c for c, _ in RESOURCE_ATTRIBUTES.values()))
        self._groups: list[int] = []
        self._fixed: dict[str, list[Scalar]] = {name: [] for name in FIXED_TYPES}
        self._promoted = {key: _SparseColumn(*item) for key, item in PROMOTED_ATTRIBUTES.items()}
        self._aggressors = _SparseColumn("aggressors", ColumnType.TEXT)

    def append_request(self, request: Any, received_unix_ns: int) -> None:
        """Add every span of a decoded trace request that was received at that time."""
        for resource_spans in request.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                group = self._resources.append(
                    resource_spans.resource, scope_spans.scope.name, received_unix_ns
                )
                self._groups.extend([group] * len(scope_spans.spans))
                self.append_spans(scope_spans.spans)

    def batch(self) -> ColumnBatch:
        """Return what was added."""
        row_count = len(self._groups)
        plain: dict[str, list[Scalar]] = dict(self._fixed)
        types = dict(FIXED_TYPES)
        for key, sparse in self._promoted.items():
            name, column_type = PROMOTED_ATTRIBUTES[key]
            plain[name] = sparse.dense(row_count)
            types[name] = column_type
        plain["aggressors"] = self._aggressors.dense(row_count)
        types["aggressors"] = ColumnType.TEXT
        return ColumnBatch(
            row_count,
            types | self._resources.types,
            dict(plain),
            self._groups,
            dict(self._resources.grouped),
        )

    def rare(self, row_count: int) -> dict[str, list[Scalar]]:
        """Return the columns of JSON text."""
        rendered = {name: self._fixed[name] for name in ("attributes", "links", "events")}
        return rendered | {"aggressors": self._aggressors.dense(row_count)}

    def append_spans(self, spans: Any) -> None:
        """Add spans without a resource; for `rare` only."""
        self._append_fixed(spans)
        self._append_attributes(spans)

    def _append_fixed(self, spans: Any) -> None:
        fixed = self._fixed
        fixed["trace_id"].extend([s.trace_id.hex() or None for s in spans])
        fixed["span_id"].extend([s.span_id.hex() or None for s in spans])
        fixed["span_key"].extend([_span_key(s.trace_id, s.span_id) for s in spans])
        fixed["parent_span_id"].extend([s.parent_span_id.hex() or None for s in spans])
        fixed["name"].extend([s.name for s in spans])
        fixed["kind"].extend([enum_name(KINDS, s.kind) for s in spans])
        fixed["start_unix_ns"].extend([unix_ns(s.start_time_unix_nano) for s in spans])
        fixed["end_unix_ns"].extend([unix_ns(s.end_time_unix_nano) for s in spans])
        fixed["trace_state"].extend([s.trace_state or None for s in spans])
        fixed["links"].extend([_json_links(s.links) if s.links else "[]" for s in spans])
        fixed["events"].extend([_json_events(s.events) if s.events else "[]" for s in spans])
        codes, messages = fixed["status_code"], fixed["status_message"]
        for span in spans:
            if span.HasField("status"):
                codes.append(enum_name(STATUS_CODES, span.status.code))
                messages.append(span.status.message or None)
            else:
                codes.append("UNSET")
                messages.append(None)

    def _append_attributes(self, spans: Any) -> None:
        texts = self._fixed["attributes"]
        find_promoted: Callable[[str], _SparseColumn | None] = self._promoted.get
        for row, span in enumerate(spans, start=len(texts)):
            parts = []
            lists: dict[str, Any] | None = None
            for attribute in span.attributes:
                key, value = attribute.key, attribute.value
                kind = value.WhichOneof("value")
                inner: Any = None
                if kind == "string_value":
                    inner = value.string_value
                    parts.append(f"{json_string(key)}:{json_string(inner)}")
                elif kind == "int_value":
                    inner = value.int_value
                    parts.append(f"{json_string(key)}:{inner}")
                else:
                    parts.append(f"{json_string(key)}:{json_value(value)}")
                    if kind is not None:
                        inner = getattr(value, kind)
                    if key in _AGGRESSOR_KEYS:
                        lists = lists or {}
                        lists[key] = inner if kind == "array_value" else None
                promoted = find_promoted(key)
                if promoted is not None:
                    promoted.take(row, kind, inner)
            texts.append("{" + ",".join(parts) + "}")
            if lists is not None:
                self._aggressors.take(row, "string_value", _json_aggressors(lists))


def render_rare(spans: list[Any]) -> dict[str, list[Scalar]]:
    """Return the JSON columns of span messages: attributes, aggressors, links and events."""
    columns = SpanColumns()
    columns.append_spans(spans)
    return columns.rare(len(spans))


def unix_ns(value: int) -> int | None:
    """Return an OTLP time as Unix ns; None for 0, which means unknown, and for what a BIGINT cannot hold."""
    return value if 0 < value <= MAX_BIGINT else None


def _span_key(trace_id: bytes, span_id: bytes) -> int | None:
    if not 0 < len(span_id) <= SPAN_KEY_BYTES:
        return None
    mixed = int.from_bytes(trace_id[-8:]) * SPAN_KEY_FACTOR & 0xFFFF_FFFF_FFFF_FFFF
    return int.from_bytes(span_id) ^ mixed


def enum_name(names: tuple[str, ...], number: int) -> str:
    """Return the name of an enum's number, or the number where it has none."""
    return names[number] if 0 <= number < len(names) else str(number)


def _json_aggressors(lists: dict[str, Any]) -> str | None:
    """Return the three lists as one of objects; None unless they are complete, typed and equally long."""
    if len(lists) != len(_AGGRESSOR_KEYS) or None in lists.values():
        return None
    pids = [(v.WhichOneof("value"), v) for v in lists[semconv.TRAINING_AGGRESSOR_PIDS].values]
    names = [(v.WhichOneof("value"), v) for v in lists[semconv.TRAINING_AGGRESSOR_NAMES].values]
    times_ns = [
        seconds_to_ns(kind, getattr(v, kind) if kind else None)
        for v in lists[semconv.TRAINING_AGGRESSOR_TIMES].values
        for kind in (v.WhichOneof("value"),)
    ]
    is_typed = (
        len(pids) == len(names) == len(times_ns)
        and all(kind == "int_value" for kind, _ in pids)
        and all(kind == "string_value" for kind, _ in names)
        and None not in times_ns
    )
    if not is_typed:
        return None
    return json.dumps(
        [
            {"pid": pid.int_value, "name": name.string_value, "ns": time_ns}
            for (_, pid), (_, name), time_ns in zip(pids, names, times_ns, strict=True)
        ]
    )


def _json_links(links: Any) -> str:
    items = [
        f'{{"trace_id":"{link.trace_id.hex()}","span_id":"{link.span_id.hex()}",'
        f'"trace_state":{json_string(link.trace_state)},"flags":{link.flags},'
        f'"attributes":{json_attributes(link.attributes)}}}'
        for link in links
    ]
    return "[" + ",".join(items) + "]"


def _json_events(events: Any) -> str:
    items = [
        f'{{"unix_ns":{event.time_unix_nano},"name":{json_string(event.name)},'
        f'"attributes":{json_attributes(event.attributes)}}}'
        for event in events
    ]
    return "[" + ",".join(items) + "]"
