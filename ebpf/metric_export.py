"""Measurements as OTLP metrics, and one export at a time on a thread of its own.

Every value of an agent is a total, or a state, that it has at hand: the SDK's providers, instruments and aggregations
would only copy it, with a thread and a connection for each rank. So the SDK's exporter is given the data as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from rootwalk.ebpf.reader import Measurement
from rootwalk.instrumentation.export import (
    build_metric_exporter,
    product_version,
    suppress_instrumentation,
)
from rootwalk.instrumentation.semconv import METRICS

__all__ = ["MetricExport", "build_resource_metrics"]

SCOPE = "rootwalk.ebpf"


def build_resource_metrics(
    resource: Resource, measurements: Iterable[Measurement], start_unix_ns: int, now_unix_ns: int
) -> ResourceMetrics:
    """Return what is known of one Resource; sums are totals, whatever a user prefers of other telemetry.

    Args:
        resource: Whose they are.
        measurements: All of its values.
        start_unix_ns: Since when it is watched.
        now_unix_ns: When the values were read.
    """
    points: dict[str, list[NumberDataPoint]] = {}
    for one in measurements:
        start_ns = None if METRICS[one.metric].instrument == "gauge" else start_unix_ns
        point = NumberDataPoint(one.attributes, start_ns, now_unix_ns, one.value)  # type: ignore[arg-type]
        points.setdefault(one.metric, []).append(point)
    metrics = [_metric(name, of_name) for name, of_name in points.items()]
    scope = ScopeMetrics(InstrumentationScope(SCOPE, product_version()), metrics, "")
    return ResourceMetrics(resource, [scope], resource.schema_url)


def _metric(name: str, points: list[NumberDataPoint]) -> Metric:
    definition = METRICS[name]
    if definition.instrument == "gauge":
        return Metric(name, "", definition.unit, Gauge(points))
    is_monotonic = definition.instrument != "updowncounter"
    return Metric(
        name, "", definition.unit, Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic)
    )


class MetricExport:
    """Exports in the background: an endpoint that is slow or away holds nobody up.

    Args:
        endpoint: OTLP/HTTP base URL.
    """

    def __init__(self, endpoint: str) -> None:
        self._exporter: OTLPMetricExporter = build_metric_exporter(endpoint)
        self._thread: threading.Thread | None = None
        self.is_taken = True

    @property
    def is_busy(self) -> bool:
        """Whether the last request is still under way; when it is not, `is_taken` tells what became of it."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, resources: list[ResourceMetrics]) -> None:
        """Begin to send one request, when none is under way."""
        self._thread = threading.Thread(
            target=self._export,
            args=(MetricsData(resources),),
            name="rootwalk-metrics",
            daemon=True,
        )
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until no request is under way; return whether that is so."""
        if self._thread is not None:
            self._thread.join(timeout=max(timeout_s, 0.0))
        return not self.is_busy

    def close(self) -> None:
        """Give up what is under way, and close the connection."""
        self._exporter.shutdown()
        self.wait(0.5)

    def _export(self, data: MetricsData) -> None:
        self.is_taken = False
        with suppress_instrumentation():
            self.is_taken = self._exporter.export(data) is MetricExportResult.SUCCESS
