r"""A store's spans, metrics, logs and profiles as OTLP again: JSON lines, the form of the Collector's file exporter.

    {"resourceSpans": ...}\n{"resourceMetrics": ...}\n ...     a request a line, which `rootwalk import otlp` reads

What a store has of a record comes back equal; a span that it has twice comes back once. The graph and the findings are
not telemetry: `rootwalk diagnose` makes them anew. With steps chosen, metrics, logs and profiles are those of the time
between the first start and the last end of these steps.

Source: OTLP 1.11, JSON protobuf encoding and file exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rootwalk.graph.exporters import otlp_profiles
from rootwalk.graph.exporters.otlp_records import (
    LOG_COLUMNS,
    METRIC_COLUMNS,
    SPAN_COLUMNS,
    add_log,
    add_metric,
    add_span,
)
from rootwalk.graph.exporters.otlp_values import fill_attributes
from rootwalk.instrumentation.errors import InsufficientDataError
from rootwalk.otel_receiver.otlp_json import render_json_message

if TYPE_CHECKING:
    from rootwalk.graph.exporters.formats import Choice

__all__ = ["write"]

# Rows of one request, and characters of their attributes: a line is far below the 64 MiB that readers take.
ROWS_AT_ONCE: Final = 2_000
MAX_CHARACTERS: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class _Signal:
    """A table, and how its rows become a request."""

    name: str
    table: str
    columns: tuple[str, ...]
    time: str
    request: Callable[[], Any]
    resources: str
    scopes: str
    add: Callable[[Any, tuple[Any, ...], dict[Any, Any]], None]


_SIGNALS: Final = (
    _Signal(
        *("spans", "span_records", SPAN_COLUMNS, "start_unix_ns"),
        *(ExportTraceServiceRequest, "resource_spans", "scope_spans"),
        add=lambda scope, row, _: add_span(scope, row),
    ),
    _Signal(
        *("metric points", "metric_records", METRIC_COLUMNS, "unix_ns"),
        *(ExportMetricsServiceRequest, "resource_metrics", "scope_metrics"),
        add=add_metric,
    ),
    _Signal(
        *("log records", "log_records", LOG_COLUMNS, "unix_ns"),
        *(ExportLogsServiceRequest, "resource_logs", "scope_logs"),
        add=lambda scope, row, _: add_log(scope, row),
    ),
)


def write(connection: Any, choice: Choice, path: Path) -> str:
    """Write the chosen records into a file, and return how many there are of each signal.

    Raises:
        InsufficientDataError: If there is none.
        OSError: As the disk says.
    """
    span_ns = _time_of_steps(connection, choice)
    counts: dict[str, int] = {}
    with path.open("wb") as file:
        for signal in _SIGNALS:
            counts[signal.name] = 0
            for request, count in _requests(connection, signal, choice, span_ns):
                counts[signal.name] += count
                file.write(orjson.dumps(render_json_message(request)) + b"\n")
        counts["profile samples"] = 0
        where, values = _conditions(choice, span_ns, "p.", "unix_ns")
        is_all = where == "true"
        for request, count in otlp_profiles.read_requests(connection, where, values, is_all=is_all):
            counts["profile samples"] += count
            file.write(orjson.dumps(render_json_message(request)) + b"\n")
        size_bytes = file.tell()
    if not size_bytes:
        raise InsufficientDataError(
            "cannot export: saw no span, metric, log or profile of this job, these ranks and steps; needs one",
            hint="`rootwalk sql STORE 'FROM ranks'` lists what is there",
        )
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _requests(
    connection: Any, signal: _Signal, choice: Choice, span_ns: tuple[int, int] | None
) -> Iterator[tuple[Any, int]]:
    by_step = signal.table == "span_records"
    where, values = _conditions(choice, None if by_step else span_ns, "", signal.time)
    if by_step and choice.steps is not None:
        where += " AND step BETWEEN ? AND ?"
        values += choice.steps
    columns = ", ".join(("resource", "scope_name", *signal.columns))
    cursor = connection.cursor()
    cursor.execute(f"SELECT {columns} FROM {signal.table} WHERE {where}", values)  # noqa: S608
    while rows := cursor.fetchmany(ROWS_AT_ONCE):
        batch: list[tuple[Any, ...]] = []
        characters = 0
        for row in rows:
            size = sum(len(value) for value in row if isinstance(value, str))
            if batch and characters + size > MAX_CHARACTERS:
                yield _request(signal, batch), len(batch)
                batch, characters = [], 0
            batch.append(row)
            characters += size
        yield _request(signal, batch), len(batch)


def _request(signal: _Signal, rows: list[tuple[Any, ...]]) -> Any:
    request = signal.request()
    resources: dict[str, Any] = {}
    scopes: dict[tuple[str, str | None], tuple[Any, dict[Any, Any]]] = {}
    for resource, scope_name, *row in rows:
        group = resources.get(resource)
        if group is None:
            group = resources[resource] = getattr(request, signal.resources).add()
            fill_attributes(group.resource.attributes, resource)
        found = scopes.get((resource, scope_name))
        if found is None:
            scope = getattr(group, signal.scopes).add()
            scope.scope.name = scope_name or ""
            found = scopes[resource, scope_name] = scope, {}
        signal.add(found[0], tuple(row), found[1])
    return request


def _conditions(
    choice: Choice, span_ns: tuple[int, int] | None, prefix: str, time: str
) -> tuple[str, list[Any]]:
    where, values = ["true"], list[Any]()
    if choice.job is not None:
        where.append(f"{prefix}job = ?")
        values.append(choice.job)
    if choice.ranks is not None:
        where.append(f"{prefix}rank IN (SELECT unnest(?))")
        values.append(list(choice.ranks))
    if span_ns is not None:
        where.append(f"{prefix}{time} BETWEEN ? AND ?")
        values += span_ns
    return " AND ".join(where), values


def _time_of_steps(connection: Any, choice: Choice) -> tuple[int, int] | None:
    """Return when the chosen steps were; None without a choice, and a time at which nothing was without a step."""
    if choice.steps is None:
        return None
    where, values = _conditions(choice, None, "", "")
    first, last = connection.execute(
        f"SELECT min(start_unix_ns), max(end_unix_ns) FROM steps WHERE {where} AND step BETWEEN ? AND ?",  # noqa: S608
        [*values, *choice.steps],
    ).fetchone()
    return (0, -1) if first is None or last is None else (int(first), int(last))
