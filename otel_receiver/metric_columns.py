"""Data points of decoded metric requests as columns of the table metric_records.

One row a data point of any of the five kinds. What a number cannot hold (buckets, quantiles, exemplars, flags,
temporality) is JSON in the column data; counts there are whole numbers, doubles that JSON lacks are words.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from rootwalk.otel_receiver.any_value import json_attributes
from rootwalk.otel_receiver.columns import ColumnType
from rootwalk.otel_receiver.resource_columns import RecordColumns
from rootwalk.otel_receiver.span_columns import unix_ns

__all__ = ["MetricColumns"]

_TYPES: Final[dict[str, ColumnType]] = {
    "name": ColumnType.TEXT,
    "kind": ColumnType.TEXT,
    "unit": ColumnType.TEXT,
    "unix_ns": ColumnType.BIGINT,
    "start_unix_ns": ColumnType.BIGINT,
    "value": ColumnType.DOUBLE,
    "is_monotonic": ColumnType.BOOLEAN,
    "attributes": ColumnType.TEXT,
    "data": ColumnType.TEXT,
}
_TEMPORALITIES: Final = ("unspecified", "delta", "cumulative")
# A double holds every whole number up to here.
_MAX_EXACT_INT: Final = 2**53


class MetricColumns(RecordColumns):
    """Columns under construction; `append_request` any number of times, then `batch`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_TYPES)

    def append_request(self, request: Any, received_unix_ns: int) -> None:
        """Add every data point of a decoded metrics request that was received at that time."""
        for resource_metrics in request.resource_metrics:
            for scope_metrics in resource_metrics.scope_metrics:
                group = self._resources.append(
                    resource_metrics.resource, scope_metrics.scope.name, received_unix_ns
                )
                for metric in scope_metrics.metrics:
                    self._append_metric(metric, group)

    def _append_metric(self, metric: Any, group: int) -> None:
        kind = metric.WhichOneof("data")
        if kind is None:
            return
        instrument = getattr(metric, kind)
        is_monotonic = instrument.is_monotonic if kind == "sum" else None
        shared: dict[str, Any] = {}
        if kind not in ("gauge", "summary"):
            shared["temporality"] = _temporality(instrument.aggregation_temporality)
        columns = self._columns
        for point in instrument.data_points:
            value, data = _point(kind, point)
            if point.flags:
                data["flags"] = point.flags
            texts = {**shared, **data}
            self._groups.append(group)
            columns["name"].append(metric.name)
            columns["kind"].append(kind)
            columns["unit"].append(metric.unit or None)
            columns["unix_ns"].append(unix_ns(point.time_unix_nano))
            columns["start_unix_ns"].append(unix_ns(point.start_time_unix_nano))
            columns["value"].append(value)
            columns["is_monotonic"].append(is_monotonic)
            columns["attributes"].append(json_attributes(point.attributes))
            columns["data"].append(_json_data(texts, point, kind))


def _point(kind: str, point: Any) -> tuple[float | None, dict[str, Any]]:
    """Return the row's number and the parts of its data."""
    if kind in ("gauge", "sum"):
        return _number(point)
    if kind == "summary":
        quantiles = [
            {"quantile": _json_number(q.quantile), "value": _json_number(q.value)}
            for q in point.quantile_values
        ]
        data = {"count": point.count, "sum": _json_number(point.sum), "quantiles": quantiles}
        return _finite(point.sum), data
    data = {"count": point.count}
    for name in ("sum", "min", "max"):
        if point.HasField(name):
            data[name] = _json_number(getattr(point, name))
    if kind == "histogram":
        data["bucket_counts"] = list(point.bucket_counts)
        data["explicit_bounds"] = [_json_number(bound) for bound in point.explicit_bounds]
    else:
        data["scale"] = point.scale
        data["zero_count"] = point.zero_count
        data["zero_threshold"] = _json_number(point.zero_threshold)
        for side in ("positive", "negative"):
            buckets = getattr(point, side)
            data[side] = {"offset": buckets.offset, "bucket_counts": list(buckets.bucket_counts)}
    return (_finite(point.sum) if point.HasField("sum") else None), data


def _number(point: Any) -> tuple[float | None, dict[str, Any]]:
    kind = point.WhichOneof("value")
    if kind == "as_int":
        whole = point.as_int
        return float(whole), ({"as_int": whole} if abs(whole) > _MAX_EXACT_INT else {})
    if kind == "as_double":
        number = _finite(point.as_double)
        return number, ({} if number is not None else {"as_double": _json_number(point.as_double)})
    return None, {}


def _json_data(data: dict[str, Any], point: Any, kind: str) -> str:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    if kind == "summary" or not point.exemplars:
        return text
    exemplars = ",".join([_json_exemplar(exemplar) for exemplar in point.exemplars])
    return f'{text[:-1]}{"," if data else ""}"exemplars":[{exemplars}]}}'


def _json_exemplar(exemplar: Any) -> str:
    kind = exemplar.WhichOneof("value")
    value = json.dumps(_json_number(getattr(exemplar, kind)) if kind else None)
    return (
        f'{{"unix_ns":{exemplar.time_unix_nano},"value":{value},"trace_id":"{exemplar.trace_id.hex()}",'
        f'"span_id":"{exemplar.span_id.hex()}","attributes":{json_attributes(exemplar.filtered_attributes)}}}'
    )


def _temporality(number: int) -> str:
    return _TEMPORALITIES[number] if 0 <= number < len(_TEMPORALITIES) else str(number)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _json_number(number: float) -> float | str:
    if math.isfinite(number):
        return number
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"
