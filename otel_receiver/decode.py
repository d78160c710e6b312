"""OTLP protobuf bytes to column batches; pure.

The second pass over the same bytes: `request_checks` has read them before the request was acknowledged. Known
attributes become typed columns, and every attribute also stays in a JSON object.

Source:
    opentelemetry-proto 1.10, trace/v1 and metrics/v1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from rootwalk.otel_receiver.columns import ColumnBatch
from rootwalk.otel_receiver.kernels import loaded_kernels
from rootwalk.otel_receiver.log_columns import LogColumns
from rootwalk.otel_receiver.metric_columns import MetricColumns
from rootwalk.otel_receiver.profile_columns import ProfileColumns
from rootwalk.otel_receiver.request_checks import parse_request
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.span_columns import SpanColumns

__all__ = ["decode_logs", "decode_metrics", "decode_profiles", "decode_spans"]

_Columns = TypeVar("_Columns", SpanColumns, MetricColumns, LogColumns, ProfileColumns)


def decode_spans(requests: Iterable[tuple[int, bytes]]) -> ColumnBatch:
    """Return the spans of trace requests as columns of the table span_records.

    Args:
        requests: For each request when it was received (Unix ns) and its bytes.

    Raises:
        DecodeError: If bytes are not a trace request; `read_request` has let none of these pass.
    """
    kernels = loaded_kernels()
    if kernels is not None:
        from rootwalk.otel_receiver.fast_spans import decode_spans_fast

        return decode_spans_fast(kernels, list(requests))
    return _filled(SpanColumns(), Signal.TRACES, requests).batch()


def decode_metrics(requests: Iterable[tuple[int, bytes]]) -> ColumnBatch:
    """Return the data points of metric requests as columns of the table metric_records.

    Args:
        requests: For each request when it was received (Unix ns) and its bytes.

    Raises:
        DecodeError: If bytes are not a metrics request; `read_request` has let none of these pass.
    """
    return _filled(MetricColumns(), Signal.METRICS, requests).batch()


def decode_logs(requests: Iterable[tuple[int, bytes]]) -> ColumnBatch:
    """Return the log records of logs requests as columns of the table log_records.

    Args:
        requests: For each request when it was received (Unix ns) and its bytes.

    Raises:
        DecodeError: If bytes are not a logs request; `read_request` has let none of these pass.
    """
    return _filled(LogColumns(), Signal.LOGS, requests).batch()


def decode_profiles(requests: Iterable[tuple[int, bytes]]) -> dict[str, ColumnBatch]:
    """Return the profiles of profiles requests as columns of the profile tables, by table.

    Args:
        requests: For each request when it was received (Unix ns) and its bytes.

    Raises:
        DecodeError: If bytes are not a profiles request; `read_request` has let none of these pass.
    """
    return _filled(ProfileColumns(), Signal.PROFILES, requests).batches()


def _filled(columns: _Columns, signal: Signal, requests: Iterable[tuple[int, bytes]]) -> _Columns:
    for received_unix_ns, body in requests:
        columns.append_request(parse_request(signal, body), received_unix_ns)
    return columns
