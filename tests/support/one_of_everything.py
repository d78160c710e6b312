"""What every client program under tests/clients sends, and what of it a store has: field by field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rootwalk.otel_receiver.store import query_store

BEGIN_NS = 1_700_000_000_000_000_000

PARENT = {
    "name": "parent",
    "kind": "SERVER",
    "start_unix_ns": BEGIN_NS + 1,
    "end_unix_ns": BEGIN_NS + 5_000_000_001,
    "status_code": "ERROR",
    "status_message": "broken",
    "parent_span_id": None,
    "attributes": {
        "text": "grüße",
        "yes": True,
        "count": -7,
        "ratio": 0.25,
        "words": {"arrayValue": {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}},
        "numbers": {"arrayValue": {"values": [{"intValue": "1"}, {"intValue": "2"}]}},
    },
    "links": [
        {
            "trace_id": "0102030405060708090a0b0c0d0e0f10",
            "span_id": "0102030405060708",
            "attributes": {"why": "linked"},
        }
    ],
    "events": [{"unix_ns": BEGIN_NS + 2, "name": "moment", "attributes": {"n": 1}}],
}
CHILD = {
    "name": "child",
    "kind": "CLIENT",
    "start_unix_ns": BEGIN_NS + 3,
    "end_unix_ns": BEGIN_NS + 4,
    "status_code": "UNSET",
    "status_message": None,
    "attributes": {},
    "links": [],
    "events": [],
}
LOG = {
    "unix_ns": BEGIN_NS + 5,
    "severity_number": 13,
    "severity_text": "WARN",
    "event_name": "client.event",
    "body": "it happened",
    "attributes": {"code": 42},
}
# Name: kind, unit, value, attributes, is_monotonic, and what `data` holds at least.
METRICS: dict[str, tuple[str, str | None, float, dict[str, Any], bool | None, dict[str, Any]]] = {
    "requests": ("sum", "1", 5.0, {"route": "/a"}, True, {"temporality": "cumulative"}),
    "queue": ("sum", None, -2.0, {}, False, {"temporality": "cumulative"}),
    "temperature": ("gauge", "Cel", 21.5, {}, None, {}),
    "latency": (
        "histogram",
        "s",
        31.0,
        {},
        None,
        {
            "temporality": "cumulative",
            "count": 2,
            "min": 1.0,
            "max": 30.0,
            "bucket_counts": [1, 0, 1],
            "explicit_bounds": [10.0, 20.0],
        },
    ),
    "sizes": (
        "exponential_histogram",
        "By",
        7.0,
        {},
        None,
        {"temporality": "cumulative", "count": 3, "min": 1.0, "max": 4.0, "zero_count": 0},
    ),
}
RESOURCE = {"client.number": 3}
SCOPE = "clients"


def find_differences(store: Path, sender: str) -> dict[str, list[str]]:
    """Return, for each signal, what of one sender's is missing or otherwise than it was sent; empty when all is well.

    Args:
        store: Where it was received.
        sender: The service.name that it was sent with.
    """
    readers: dict[str, Callable[[Path, str], list[str]]] = {
        "traces": _compare_spans,
        "metrics": _compare_metrics,
        "logs": _compare_logs,
    }
    return {signal: compare(store, sender) for signal, compare in readers.items()}


def _rows(store: Path, view: str, sender: str) -> list[dict[str, Any]]:
    quoted = sender.replace("'", "''")
    names, types, rows = query_store(store, f"FROM {view} WHERE service_name = '{quoted}'")
    return [
        {
            name: json.loads(value) if kind == "JSON" and value is not None else value
            for name, kind, value in zip(names, types, row, strict=True)
        }
        for row in rows
    ]


def _differ(what: str, expected: dict[str, Any], seen: dict[str, Any]) -> list[str]:
    return [
        f"{what}: {key} is {seen.get(key)!r}, sent was {value!r}"
        for key, value in expected.items()
        if seen.get(key) != value
    ]


def _common(what: str, row: dict[str, Any], sender: str) -> list[str]:
    expected = {"scope_name": SCOPE, "resource": RESOURCE | {"service.name": sender}}
    return _differ(what, expected, row)


def _compare_spans(store: Path, sender: str) -> list[str]:
    rows = {row["name"]: row for row in _rows(store, "spans", sender)}
    if rows.keys() != {"parent", "child"}:
        return [f"spans stored: {sorted(rows)}, sent were parent and child"]
    parent, child = rows["parent"], rows["child"]
    for link in parent["links"]:  # a link's own flags and state differ by SDK
        for optional in set(link) - {"trace_id", "span_id", "attributes"}:
            del link[optional]
    related = {"parent_span_id": parent["span_id"], "trace_id": parent["trace_id"]}
    return [
        *_differ("parent", PARENT, parent),
        *_differ("child", CHILD | related, child),
        *_common("parent", parent, sender),
        *_common("child", child, sender),
    ]


def _compare_metrics(store: Path, sender: str) -> list[str]:
    rows = {row["name"]: row for row in _rows(store, "metrics", sender)}
    if rows.keys() != METRICS.keys():
        return [f"metrics stored: {sorted(rows)}, sent were {sorted(METRICS)}"]
    found = []
    for name, (kind, unit, value, attributes, is_monotonic, data) in METRICS.items():
        row = rows[name]
        expected = {
            "kind": kind,
            "unit": unit,
            "value": value,
            "attributes": attributes,
            "is_monotonic": is_monotonic,
        }
        found += _differ(name, expected, row)
        found += _differ(f"{name}.data", data, row["data"])
        found += _common(name, row, sender)
    filled = [count for count in rows["sizes"]["data"]["positive"]["bucket_counts"] if count]
    return found if filled == [1, 1, 1] else [*found, f"sizes: buckets {filled}, sent were 1, 2, 4"]


def _compare_logs(store: Path, sender: str) -> list[str]:
    rows = _rows(store, "logs", sender)
    if len(rows) != 1:
        return [f"log records stored: {len(rows)}, sent was one"]
    spans = {row["name"]: row for row in _rows(store, "spans", sender)}
    inside = {key: spans["parent"][key] for key in ("trace_id", "span_id")} if spans else {}
    return [*_differ("log", LOG | inside, rows[0]), *_common("log", rows[0], sender)]
