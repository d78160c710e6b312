"""Rows of a store as OTLP messages again: spans, data points, log records. Profiles are `otlp_profiles`'.

Source: `otel_receiver`'s span_columns, metric_columns and log_columns, backwards. What they do not store (scope
versions, schema addresses, descriptions, counts of what senders dropped) is not there to write.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rootwalk.graph.exporters.otlp_values import fill_attributes, fill_value, read_text
from rootwalk.otel_receiver.span_columns import KINDS, STATUS_CODES

__all__ = ["LOG_COLUMNS", "METRIC_COLUMNS", "SPAN_COLUMNS", "add_log", "add_metric", "add_span"]

# Of each table, in the order of the fields of the rows below; resource and scope_name come before them.
SPAN_COLUMNS: Final = (
    *("trace_id", "span_id", "parent_span_id", "name", "kind", "start_unix_ns", "end_unix_ns"),
    *("status_code", "status_message", "trace_state", "attributes", "links", "events"),
)
METRIC_COLUMNS: Final = (
    *("name", "kind", "unix_ns", "start_unix_ns", "value", "is_monotonic", "unit", "attributes"),
    "data",
)
LOG_COLUMNS: Final = (
    *("unix_ns", "observed_unix_ns", "severity_number", "severity_text", "event_name", "body"),
    *("trace_id", "span_id", "flags", "dropped_attributes", "attributes"),
)
_TEMPORALITIES: Final = ("unspecified", "delta", "cumulative")


def _id(text: str | None) -> bytes:
    return bytes.fromhex(text or "")


def _enum(names: tuple[str, ...], name: str | None) -> int:
    """Return the number of a name; a number that had none is its own name."""
    if name in names:
        return names.index(name)
    return int(name or 0)


def add_span(scope_spans: Any, row: tuple[Any, ...]) -> None:
    """Add a row of spans to its scope."""
    trace_id, span_id, parent, name, kind, start, end, status, said, state, *rest = row
    span = scope_spans.spans.add(
        trace_id=_id(trace_id),
        span_id=_id(span_id),
        parent_span_id=_id(parent),
        name=name or "",
        kind=_enum(KINDS, kind),
        start_time_unix_nano=start or 0,
        end_time_unix_nano=end or 0,
        trace_state=state or "",
    )
    if status != STATUS_CODES[0] or said is not None:
        span.status.code = _enum(STATUS_CODES, status)
        span.status.message = said or ""
    attributes, links, events = rest
    fill_attributes(span.attributes, attributes)
    for link in [] if links == "[]" else read_text(links):
        parts = dict(link)
        added = span.links.add(
            trace_id=_id(parts["trace_id"]),
            span_id=_id(parts["span_id"]),
            trace_state=parts["trace_state"],
            flags=parts["flags"],
        )
        _fill_pairs(added.attributes, parts["attributes"])
    for event in [] if events == "[]" else read_text(events):
        parts = dict(event)
        occurred = span.events.add(time_unix_nano=parts["unix_ns"], name=parts["name"])
        _fill_pairs(occurred.attributes, parts["attributes"])


def _fill_pairs(attributes: Any, pairs: Any) -> None:
    for key, value in pairs:
        fill_value(attributes.add(key=key).value, value)


def add_log(scope_logs: Any, row: tuple[Any, ...]) -> None:
    """Add a row of logs to its scope."""
    time, observed, number, text, event, body, trace_id, span_id, flags, dropped, attributes = row
    record = scope_logs.log_records.add(
        time_unix_nano=time or 0,
        observed_time_unix_nano=observed or 0,
        severity_number=number or 0,
        severity_text=text or "",
        event_name=event or "",
        trace_id=_id(trace_id),
        span_id=_id(span_id),
        flags=flags or 0,
        dropped_attributes_count=dropped or 0,
    )
    if body is not None:
        record.body.SetInParent()
        fill_value(record.body, read_text(body))
    fill_attributes(record.attributes, attributes)


class _Instrument(NamedTuple):
    name: str
    kind: str
    unit: str
    is_monotonic: bool | None
    temporality: str | None


def add_metric(scope_metrics: Any, row: tuple[Any, ...], known: dict[Any, Any]) -> None:
    """Add a data point to the metric that it is of, in its scope.

    Args:
        scope_metrics: The scope.
        row: Of metrics.
        known: The metrics of the scope so far, which grow.
    """
    name, kind, time, start, value, is_monotonic, unit, attributes, text = row
    data = dict(read_text(text))
    key = _Instrument(name or "", kind, unit or "", is_monotonic, data.get("temporality"))
    instrument = known.get(key)
    if instrument is None:
        metric = scope_metrics.metrics.add(name=key.name, unit=key.unit)
        instrument = known[key] = getattr(metric, kind)
        instrument.SetInParent()
        if key.temporality is not None:
            instrument.aggregation_temporality = _enum(_TEMPORALITIES, key.temporality)
        if is_monotonic:
            instrument.is_monotonic = True
    point = instrument.data_points.add(
        time_unix_nano=time or 0, start_time_unix_nano=start or 0, flags=data.get("flags", 0)
    )
    fill_attributes(point.attributes, attributes)
    if kind in ("gauge", "sum"):
        _fill_number(point, value, data)
    else:
        _fill_summed(point, kind, data)
    for exemplar in data.get("exemplars", ()):
        _add_exemplar(point, dict(exemplar))


def _fill_number(point: Any, value: float | None, data: dict[str, Any]) -> None:
    if "as_int" in data:
        point.as_int = data["as_int"]
    elif "as_double" in data:
        point.as_double = float(data["as_double"])
    elif value is not None:
        point.as_double = value


def _fill_summed(point: Any, kind: str, data: dict[str, Any]) -> None:
    point.count = data["count"]
    for name in ("sum", "min", "max"):
        if name in data:
            setattr(point, name, float(data[name]))
    if kind == "summary":
        for quantile in data["quantiles"]:
            parts = dict(quantile)
            point.quantile_values.add(
                quantile=float(parts["quantile"]), value=float(parts["value"])
            )
    elif kind == "histogram":
        point.bucket_counts.extend(data["bucket_counts"])
        point.explicit_bounds.extend([float(bound) for bound in data["explicit_bounds"]])
    else:
        point.scale = data["scale"]
        point.zero_count = data["zero_count"]
        point.zero_threshold = float(data["zero_threshold"])
        for side in ("positive", "negative"):
            parts = dict(data[side])
            getattr(point, side).offset = parts["offset"]
            getattr(point, side).bucket_counts.extend(parts["bucket_counts"])


def _add_exemplar(point: Any, parts: dict[str, Any]) -> None:
    exemplar = point.exemplars.add(
        time_unix_nano=parts["unix_ns"],
        trace_id=_id(parts["trace_id"]),
        span_id=_id(parts["span_id"]),
    )
    value = parts["value"]
    if isinstance(value, int):
        exemplar.as_int = value
    elif value is not None:
        exemplar.as_double = float(value)
    _fill_pairs(exemplar.filtered_attributes, parts["attributes"])
