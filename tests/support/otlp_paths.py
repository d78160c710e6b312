"""Where OTLP requests go, written out from the specification and not taken from the receiver under test."""

from __future__ import annotations

from typing import Final

from rootwalk.otel_receiver.signals import Signal

TRACE_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
METRIC_EXPORT: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
LOG_EXPORT: Final = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
PROFILE_EXPORT: Final = (
    "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
)
GRPC_PATHS: Final = {
    Signal.TRACES: TRACE_EXPORT,
    Signal.METRICS: METRIC_EXPORT,
    Signal.LOGS: LOG_EXPORT,
    Signal.PROFILES: PROFILE_EXPORT,
}
HTTP_PATHS: Final = {
    Signal.TRACES: "/v1/traces",
    Signal.METRICS: "/v1/metrics",
    Signal.LOGS: "/v1/logs",
    Signal.PROFILES: "/v1development/profiles",
}
