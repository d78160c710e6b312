"""A simulated job as its ranks would send it: OTLP requests, and a file of JSON lines."""

from __future__ import annotations

import itertools
import json
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rootwalk.otel_receiver.columns import ColumnType
from rootwalk.otel_receiver.otlp_json import render_json_message
from rootwalk.otel_receiver.resource_columns import RESOURCE_ATTRIBUTES
from rootwalk.otel_receiver.span_columns import PROMOTED_ATTRIBUTES
from support.jobs import Job, simulate
from support.otlp_messages import span, trace_request

SPANS_PER_REQUEST = 200


def job_requests(job: Job) -> list[bytes]:
    """Return the spans of a job, rank by rank, in requests of some hundred."""
    requests = []
    rows = sorted(simulate(job), key=lambda row: (row["rank"], row["start_unix_ns"]))
    for _, group in itertools.groupby(rows, key=lambda row: row["rank"]):
        sent = list(group)
        resource = _attributes(sent[0], RESOURCE_ATTRIBUTES)
        for first in range(0, len(sent), SPANS_PER_REQUEST):
            spans = [_span(row) for row in sent[first : first + SPANS_PER_REQUEST]]
            requests.append(trace_request(spans, resource))
    return requests


def job_lines(job: Job) -> bytes:
    """Return the same as a Collector's file exporter writes it."""
    messages = [ExportTraceServiceRequest.FromString(body) for body in job_requests(job)]
    return b"".join(json.dumps(render_json_message(m)).encode() + b"\n" for m in messages)


def _span(row: dict[str, Any]) -> Any:
    rest = json.loads(row.get("attributes", "{}"))
    return span(
        0,
        row["name"],
        trace_id=bytes.fromhex(row["trace_id"]),
        span_id=bytes.fromhex(row["span_id"]),
        start_time_unix_nano=row["start_unix_ns"],
        end_time_unix_nano=row["end_unix_ns"],
        attributes=_attributes(row, PROMOTED_ATTRIBUTES)
        | {name: _value(value) for name, value in rest.items()},
    )


def _attributes(row: dict[str, Any], columns: dict[str, tuple[str, ColumnType]]) -> dict[str, Any]:
    values = {name: (column, row.get(column)) for name, (column, _) in columns.items()}
    return {
        name: value / 1e9 if column.endswith("_ns") else value
        for name, (column, value) in values.items()
        if value is not None
    }


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return [next(iter(item.values())) for item in value["arrayValue"]["values"]]
    return value
