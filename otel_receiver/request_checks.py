"""Export requests as they arrive: are they what they claim, what in them cannot be kept, and what is answered; pure.

The first of two passes over the same bytes; the second decodes to columns when the journal is moved into the store.

Source:
    opentelemetry-proto 1.10, collector services; OTLP 1.11 for partial success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import (  # type: ignore[import-untyped]
    DecodeError as ProtobufDecodeError,
)
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.kernels import loaded_kernels
from rootwalk.otel_receiver.otlp_json import build_json_message, load_json, read_json_message
from rootwalk.otel_receiver.signals import Signal

__all__ = [
    "REJECTION_REASONS",
    "CheckedRequest",
    "build_export_response",
    "describe_rejected",
    "parse_request",
    "read_json_request",
    "read_json_requests",
    "read_request",
]

TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
# Words in counters for what is taken out of accepted requests.
REJECTION_REASONS: Final = {Signal.TRACES: "bad_id", Signal.PROFILES: "bad_index"}
_ZERO_TRACE_ID: Final = bytes(TRACE_ID_BYTES)
_ZERO_SPAN_ID: Final = bytes(SPAN_ID_BYTES)

_REQUESTS: Final[dict[Signal, Any]] = {
    Signal.TRACES: ExportTraceServiceRequest,
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
    Signal.PROFILES: ExportProfilesServiceRequest,
}
# What a request of each is a list of, in OTLP/JSON's words.
_JSON_LISTS: Final = {
    Signal.TRACES: "resourceSpans",
    Signal.METRICS: "resourceMetrics",
    Signal.LOGS: "resourceLogs",
    Signal.PROFILES: "resourceProfiles",
}
# Response type and the field that counts what was rejected; of profiles whole ones are, not samples.
_RESPONSES: Final[dict[Signal, tuple[Any, str]]] = {
    Signal.TRACES: (ExportTraceServiceResponse, "rejected_spans"),
    Signal.METRICS: (ExportMetricsServiceResponse, "rejected_data_points"),
    Signal.LOGS: (ExportLogsServiceResponse, "rejected_log_records"),
    Signal.PROFILES: (ExportProfilesServiceResponse, "rejected_profiles"),
}


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """An export request that can be stored.

    Attributes:
        body: Protobuf bytes without what was rejected.
        accepted: Spans, metric points, log records or profile samples in `body`.
        rejected: Spans that were taken out because their ids are not ids, profiles because of their indices.
    """

    body: bytes | bytearray
    accepted: int
    rejected: int = 0


def read_request(signal: Signal, body: bytes | bytearray) -> CheckedRequest:
    """Return the request if it is one.

    Raises:
        DecodeError: If `body` is not an export request of `signal`.
    """
    kernels = loaded_kernels() if signal is Signal.TRACES else None
    if kernels is not None:
        accepted, bad_count = kernels.check_request(body)
        if accepted >= 0 and not bad_count:
            return CheckedRequest(body, accepted)
    request = parse_request(signal, body)
    match signal:
        case Signal.TRACES:
            return _check_spans(request, body)
        case Signal.METRICS:
            return CheckedRequest(body, _count_points(request))
        case Signal.LOGS:
            return CheckedRequest(body, _count_log_records(request))
        case Signal.PROFILES:
            return _check_profiles(request, body)


def read_json_request(signal: Signal, body: bytes | bytearray) -> bytes:
    """Return the protobuf bytes of a request in OTLP/JSON.

    Raises:
        DecodeError: If `body` is not OTLP/JSON for `signal`.
    """
    return bytes(read_json_message(_REQUESTS[signal], body).SerializeToString())


def read_json_requests(body: bytes | bytearray) -> list[tuple[Signal, bytes]]:
    """Return the protobuf bytes of what an object in OTLP/JSON holds, of whatever signals; none of an empty object.

    Raises:
        DecodeError: If it is not an object of OTLP/JSON.
    """
    value = load_json(body)
    names = value.keys() if isinstance(value, dict) else ()
    found = [signal for signal, name in _JSON_LISTS.items() if name in names]
    if not found and value != {}:
        raise DecodeError(
            f"cannot read the request: saw JSON without {', '.join(_JSON_LISTS.values())}; needs OTLP/JSON"
        )
    return [
        (signal, bytes(build_json_message(_REQUESTS[signal], value).SerializeToString()))
        for signal in found
    ]


def parse_request(signal: Signal, body: bytes | bytearray) -> Any:
    """Return the protobuf message of a request.

    Raises:
        DecodeError: If `body` is not an export request of `signal`.
    """
    try:
        return _REQUESTS[signal].FromString(body)
    except ProtobufDecodeError as error:
        raise DecodeError(
            f"cannot decode a request for {signal}: saw {len(body)} bytes that are not protobuf "
            f"({error}); needs an Export{signal.capitalize()} request of OTLP",
            hint="check that the exporter speaks OTLP protobuf and posts to the path of its signal",
        ) from error


def describe_rejected(signal: Signal, rejected: int) -> str:
    """Return why records were taken out of an accepted request."""
    if signal is Signal.PROFILES:
        return (
            f"cannot store {rejected} profiles: saw samples that point outside the dictionary; "
            "needs indices of stacks, links and attributes that are in its tables"
        )
    return (
        f"cannot store {rejected} spans: saw trace or span ids of the wrong length or all zero; "
        f"needs {TRACE_ID_BYTES} and {SPAN_ID_BYTES} bytes"
    )


def build_export_response(signal: Signal, rejected: int, message: str | None) -> Any:
    """Return the export response message: an empty one when nothing was rejected, as the specification asks."""
    response_type, count_field = _RESPONSES[signal]
    response = response_type()
    if rejected:
        setattr(response.partial_success, count_field, rejected)
        response.partial_success.error_message = message or ""
    return response


def _check_spans(request: Any, body: bytes | bytearray) -> CheckedRequest:
    accepted = rejected = 0
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            bad = [n for n, span in enumerate(scope_spans.spans) if not _has_ids(span)]
            accepted += len(scope_spans.spans) - len(bad)
            rejected += len(bad)
            for index in reversed(bad):
                del scope_spans.spans[index]
    if not rejected:
        return CheckedRequest(body, accepted)
    return CheckedRequest(request.SerializeToString(), accepted, rejected)


def _has_ids(span: Any) -> bool:
    trace_id, span_id = span.trace_id, span.span_id
    return (
        len(trace_id) == TRACE_ID_BYTES
        and len(span_id) == SPAN_ID_BYTES
        and trace_id != _ZERO_TRACE_ID
        and span_id != _ZERO_SPAN_ID
    )


def _count_points(request: Any) -> int:
    count = 0
    for resource_metrics in request.resource_metrics:
        for scope_metrics in resource_metrics.scope_metrics:
            for metric in scope_metrics.metrics:
                kind = metric.WhichOneof("data")
                if kind is not None:
                    count += len(getattr(metric, kind).data_points)
    return count


def _count_log_records(request: Any) -> int:
    return sum(
        len(scope_logs.log_records)
        for resource_logs in request.resource_logs
        for scope_logs in resource_logs.scope_logs
    )


def _check_profiles(request: Any, body: bytes | bytearray) -> CheckedRequest:
    """Take out the profiles whose samples point outside the tables of the request."""
    dictionary = request.dictionary
    sizes = (
        len(dictionary.stack_table),
        len(dictionary.link_table),
        len(dictionary.attribute_table),
    )
    accepted = rejected = 0
    for resource_profiles in request.resource_profiles:
        for scope_profiles in resource_profiles.scope_profiles:
            profiles = scope_profiles.profiles
            bad = [n for n, profile in enumerate(profiles) if not _has_indices(profile, *sizes)]
            rejected += len(bad)
            for index in reversed(bad):
                del profiles[index]
            accepted += sum(len(profile.samples) for profile in profiles)
    if not rejected:
        return CheckedRequest(body, accepted)
    return CheckedRequest(request.SerializeToString(), accepted, rejected)


def _has_indices(profile: Any, stacks: int, links: int, attributes: int) -> bool:
    # Index 0 means "none" and may be used although its table is empty.
    return all(
        0 <= sample.stack_index < max(stacks, 1)
        and 0 <= sample.link_index < max(links, 1)
        and all(0 <= index < max(attributes, 1) for index in sample.attribute_indices)
        for sample in profile.samples
    )
