"""Telemetry held against the registry: what it says of names, types, units, instruments and required attributes.

    request or store -> records of our scopes -> violations, a line each
                                              -> names that were sent, for who asks what is never sent

Records of other producers are theirs; so are the Collector's names, under which the receiver tells of itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import EventDefinition, MetricDefinition, SpanDefinition

__all__ = ["SENT", "check_request", "check_store", "count_store", "note_store"]

SCOPES = ("rootwalk.instrumentation", "rootwalk.ebpf", "rootwalk.graph")
# Nothing in the queries of a store comes from without.
OURS = f"scope_name IN {SCOPES}"
# Names and keys that this process has seen sent: spans by type, events and metrics by name, attributes by key.
SENT: set[str] = set()
# As OTLP/JSON and the store write a value of each type of the registry; whole doubles look like ints in a store.
KINDS = {
    "string": {"string_value"},
    "int": {"int_value"},
    "double": {"double_value"},
    "boolean": {"bool_value"},
    "string[]": {"array_value"},
    "int[]": {"array_value"},
    "double[]": {"array_value"},
}
STORE_KINDS: dict[type, set[str]] = {
    str: {"string_value"},
    bool: {"bool_value"},
    int: {"int_value", "double_value"},
    float: {"double_value"},
    dict: {"array_value"},
    list: {"array_value"},
}
Kinds = Mapping[str, set[str]]
Definition = SpanDefinition | EventDefinition | MetricDefinition


def check_request(request: Any) -> list[str]:
    """Return what is against the registry in an export request of spans, metrics or logs, a line each."""
    return sorted(set(_check_request(request)))


def check_store(store: Path) -> list[str]:
    """Return what is against the registry in the spans, metrics and logs of a store, a line each."""
    return sorted(set(_check_store(store)))


def note_store(store: Path) -> None:
    """Add to `SENT` what a store has received; nothing is checked, so it takes little however much that is."""
    keys: set[str] = set()
    for table in ("spans", "logs", "metrics"):
        for column in ("attributes", "resource"):
            query = f"SELECT DISTINCT unnest(json_keys({column})) FROM {table} WHERE {OURS}"  # noqa: S608
            keys.update(key for (key,) in _rows(store, query))
    has_index = f"list_contains(json_keys(attributes), '{semconv.TRAINING_PHASE_INDEX}')"
    query = f"SELECT DISTINCT name, {has_index} FROM spans WHERE {OURS}"  # noqa: S608
    for name, is_phase in _rows(store, query):
        SENT.add(f"span {span_type(name, [semconv.TRAINING_PHASE_INDEX] if is_phase else [])}")
    for kind, table, column in (("event", "logs", "event_name"), ("metric", "metrics", "name")):
        query = f"SELECT DISTINCT {column} FROM {table} WHERE {OURS}"  # noqa: S608
        SENT.update(f"{kind} {name}" for (name,) in _rows(store, query))
    SENT.update(f"attribute {key}" for key in keys)


def count_store(store: Path) -> tuple[int, int, int]:
    """Return how many spans, data points of metrics and log records of ours a store has."""
    counts = (
        _rows(store, f"SELECT count(*) FROM {table} WHERE {OURS}")  # noqa: S608
        for table in ("spans", "metrics", "logs")
    )
    ((spans,),), ((points,),), ((logs,),) = counts
    return int(spans), int(points), int(logs)


def span_type(name: str, keys: Iterable[str]) -> str:
    """Return under which type the registry has a span: phases, collectives, operations and stalls share theirs."""
    head = name.partition(".")[0]
    if head in ("collective", "operation", "stall"):
        return head
    return "training.phase" if semconv.TRAINING_PHASE_INDEX in keys else name


def _check_request(request: Any) -> Iterator[str]:
    for group in getattr(request, request.DESCRIPTOR.fields[0].name):
        scopes = [s for s in getattr(group, group.DESCRIPTOR.fields[1].name) if _is_ours(s)]
        if scopes:
            yield from _check_keys("a resource", _kinds(group.resource.attributes))
        for scope in scopes:
            for record in getattr(scope, scope.DESCRIPTOR.fields[1].name):
                kind = record.DESCRIPTOR.name
                if kind == "Span":
                    yield from _check_span(record.name, _kinds(record.attributes))
                elif kind == "LogRecord":
                    yield from _check_event(record.event_name, _kinds(record.attributes))
                else:
                    data = record.WhichOneof("data")
                    is_monotonic = data == "sum" and record.sum.is_monotonic
                    head = (record.name, record.unit, data, is_monotonic)
                    for point in getattr(record, data).data_points:
                        yield from _check_metric(head, _kinds(point.attributes))


def _check_store(store: Path) -> Iterator[str]:
    for table in ("spans", "logs", "metrics"):
        for (resource,) in _rows(store, f"SELECT DISTINCT resource FROM {table} WHERE {OURS}"):  # noqa: S608
            yield from _check_keys("a resource", _stored(resource))
    for name, attributes in _rows(store, f"SELECT name, attributes FROM spans WHERE {OURS}"):  # noqa: S608
        yield from _check_span(name, _stored(attributes))
    for name, attributes in _rows(store, f"SELECT event_name, attributes FROM logs WHERE {OURS}"):  # noqa: S608
        yield from _check_event(name, _stored(attributes))
    query = "SELECT DISTINCT name, unit, kind, is_monotonic, attributes FROM metrics"
    for *head, attributes in _rows(store, f"{query} WHERE {OURS}"):
        yield from _check_metric(tuple(head), _stored(attributes))


def _check_span(name: str, kinds: Kinds) -> Iterator[str]:
    kind = span_type(name, kinds)
    definition = semconv.SPANS.get(kind)
    if definition is None:
        yield f"span {name}: not in the registry"
        return
    SENT.add(f"span {kind}")
    yield from _check_record(f"span {name}", definition, kinds)


def _check_event(name: str, kinds: Kinds) -> Iterator[str]:
    definition = semconv.EVENTS.get(name)
    if definition is None:
        yield f"event {name!r}: not in the registry"
        return
    SENT.add(f"event {name}")
    yield from _check_record(f"event {name}", definition, kinds)


def _check_metric(head: tuple[Any, ...], kinds: Kinds) -> Iterator[str]:
    """Check one point; `head` is name, unit, OTLP's kind of data, and whether a sum only grows."""
    name, unit, data, is_monotonic = head
    definition = semconv.METRICS.get(name)
    if definition is None:
        yield f"metric {name}: not in the registry"
        return
    SENT.add(f"metric {name}")
    if unit != definition.unit:
        yield f"metric {name}: unit {unit!r}; needs {definition.unit!r}"
    instrument = ("counter" if is_monotonic else "updowncounter") if data == "sum" else data
    if instrument != definition.instrument:
        yield f"metric {name}: {instrument}; needs {definition.instrument}"
    yield from _check_record(f"metric {name}", definition, kinds)


def _check_record(what: str, definition: Definition, kinds: Kinds) -> Iterator[str]:
    yield from _check_keys(what, kinds)
    for key in sorted(kinds.keys() - definition.attributes):
        yield f"{what}: attribute {key} is not among its own"
    for key in sorted(definition.required - kinds.keys()):
        yield f"{what}: lacks {key}, which is required"


def _check_keys(what: str, kinds: Kinds) -> Iterator[str]:
    for key, seen in kinds.items():
        wanted = semconv.ATTRIBUTES.get(key)
        if wanted is None:
            yield f"{what}: attribute {key} is not in the registry"
            continue
        SENT.add(f"attribute {key}")
        if not seen & KINDS[wanted]:
            yield f"{what}: attribute {key} is {'/'.join(sorted(seen))}; needs {wanted}"


def _is_ours(scope: Any) -> bool:
    return str(scope.scope.name) in SCOPES


def _kinds(attributes: Any) -> Kinds:
    return {one.key: {str(one.value.WhichOneof("value"))} for one in attributes}


def _stored(text: str) -> Kinds:
    """Return the kinds of attributes as a store has them, in JSON."""
    values = json.loads(text)
    return {key: STORE_KINDS.get(type(value), {"without a value"}) for key, value in values.items()}


def _rows(store: Path, query: str) -> Iterator[Any]:
    # Requests are checked in emulated machines too, which have no DuckDB.
    from rootwalk.otel_receiver.store import query_store

    yield from query_store(store, query)[2]
