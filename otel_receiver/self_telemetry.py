"""The receiver's own metrics under the Collector's names: as Prometheus text, and as OTLP into its own store.

Nothing is measured on the way of a request but its count and its duration; everything else is read when somebody asks.

    otelcol_receiver_accepted_<records>      acknowledged
    otelcol_receiver_refused_<records>       taken out of accepted requests, because of what they held
    otelcol_receiver_failed_<records>        sound, and not made durable; their senders repeat them
    otelcol_receiver_requests                all requests; `outcome` is success, refused (for good) or failure (to be
                                             repeated), `error.type` the reason. What a request that was never read
                                             would have held is not known: it is counted here only.
    otelcol_receiver_request_duration        seconds from the first byte read to the answer (a name of our own)
    otelcol_exporter_queue_size              bytes acknowledged and not in the store yet; `exporter` is store, or a URL
                                             that they are to be sent on to
    otelcol_exporter_queue_capacity          the most of them; beyond it senders are told to come again, or the oldest
                                             are not sent on
    rootwalk_forward_requests                requests sent on, or refused for good by the other end
    rootwalk_forward_failures                attempts that are repeated
    rootwalk_forward_dropped                 bytes given up because their queue was full
    otelcol_process_memory_rss, _uptime, _cpu_seconds

<records> is spans, metric_points, log_records or profile_samples.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from rootwalk.otel_receiver.answers import Result
from rootwalk.otel_receiver.backlog import Backlog
from rootwalk.otel_receiver.counters import (
    LATENCY_BOUNDS_S,
    IngestCounters,
    IngestSnapshot,
    Latency,
)
from rootwalk.otel_receiver.forward import ForwardSnapshot
from rootwalk.otel_receiver.group_commit import GroupCommit
from rootwalk.otel_receiver.journal import encode_record
from rootwalk.otel_receiver.memory_gate import MemoryGate, read_resident_bytes
from rootwalk.otel_receiver.signals import RECORD_NAMES, Signal

__all__ = ["PROMETHEUS_CONTENT_TYPE", "SelfTelemetry"]

PROMETHEUS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SERVICE_NAME: Final = "rootwalk-receiver"
SCOPE_NAME: Final = "rootwalk.otel_receiver"
_RECEIVER: Final = ("receiver", "otlp")
_PREFIX: Final = "otelcol_receiver"

_Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Instrument:
    """One metric and its points, by labels; `is_sum` tells a counter from a gauge."""

    name: str
    text: str
    unit: str
    is_sum: bool
    points: dict[_Labels, float]


class SelfTelemetry:
    """Reads the receiver's counters; `start` once to store them too, then `stop` once or more.

    Args:
        counters: What was counted.
        journal: Where own metrics become durable, like everyone's.
        gate: Which knows the memory in use.
        backlog: Which knows how much of the journal is not stored yet, and how much may be.
        read_forwards: What became of the requests for every other receiver.
    """

    def __init__(
        self,
        counters: IngestCounters,
        journal: GroupCommit,
        gate: MemoryGate,
        backlog: Backlog,
        read_forwards: Callable[[], list[ForwardSnapshot]] = list,
    ) -> None:
        self._counters = counters
        self._journal = journal
        self._gate = gate
        self._backlog = backlog
        self._read_forwards = read_forwards
        self._start_unix_ns = time.time_ns()
        self._task: asyncio.Task[None] | None = None

    def start(self, interval_s: float) -> None:
        """Store own metrics so often when they changed; 0 for never."""
        if interval_s > 0:
            self._task = asyncio.create_task(self._store(interval_s))

    async def stop(self) -> None:
        """End; safe without start and twice."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def render_prometheus(self) -> str:
        """Return everything in Prometheus's text format."""
        snapshot = self._counters.snapshot()
        lines: list[str] = []
        for instrument in self._instruments(snapshot):
            kind = "counter" if instrument.is_sum else "gauge"
            lines.append(f"# HELP {instrument.name} {instrument.text}")
            lines.append(f"# TYPE {instrument.name} {kind}")
            lines += [
                f"{instrument.name}{_render_labels(labels)} {value}"
                for labels, value in sorted(instrument.points.items())
            ]
        lines += _render_latencies(snapshot)
        return "\n".join(lines) + "\n"

    def build_request(self, now_unix_ns: int) -> bytes:
        """Return everything as an OTLP export request for metrics."""
        snapshot = self._counters.snapshot()
        request = ExportMetricsServiceRequest()
        group = request.resource_metrics.add()
        _add_attributes(
            group.resource.attributes,
            (("service.name", SERVICE_NAME), ("service.version", version("rootwalk"))),
        )
        scope = group.scope_metrics.add()
        scope.scope.name = SCOPE_NAME
        times = {"start_time_unix_nano": self._start_unix_ns, "time_unix_nano": now_unix_ns}
        for instrument in self._instruments(snapshot):
            metric = scope.metrics.add(
                name=instrument.name, description=instrument.text, unit=instrument.unit
            )
            data = metric.gauge
            if instrument.is_sum:
                metric.sum.aggregation_temporality = _CUMULATIVE
                metric.sum.is_monotonic = True
                data = metric.sum
            for labels, value in sorted(instrument.points.items()):
                point = data.data_points.add(**times)
                _set_number(point, value)
                _add_attributes(point.attributes, labels)
        if snapshot.latencies:
            metric = scope.metrics.add(name=_LATENCY_NAME, description=_LATENCY_TEXT, unit="s")
            metric.histogram.aggregation_temporality = _CUMULATIVE
            for labels, latency in _latency_points(snapshot):
                point = metric.histogram.data_points.add(
                    **times,
                    count=sum(latency.buckets),
                    sum=latency.sum_s,
                    bucket_counts=latency.buckets,
                    explicit_bounds=LATENCY_BOUNDS_S,
                )
                _add_attributes(point.attributes, labels)
        return bytes(request.SerializeToString())

    async def _store(self, interval_s: float) -> None:
        before: dict[Any, int] = {}
        while True:
            await asyncio.sleep(interval_s)
            requests = self._counters.snapshot().requests
            if requests == before:
                continue
            before = requests
            now_unix_ns = time.time_ns()
            data = encode_record(Signal.METRICS, now_unix_ns, self.build_request(now_unix_ns))
            # Not counted as received; a full disk, which refuses it, is counted where senders are refused.
            self._journal.submit(data, 0, lambda _failure: None)

    def _instruments(self, snapshot: IngestSnapshot) -> list[_Instrument]:
        instruments: list[_Instrument] = []
        for signal in Signal:
            records = RECORD_NAMES[signal]
            for word, text, counts in (
                ("accepted", "acknowledged", snapshot.accepted),
                ("refused", "taken out of accepted requests", snapshot.refused_records),
                ("failed", "that could not be made durable", snapshot.failed_records),
            ):
                name = f"{_PREFIX}_{word}_{records}"
                text = f"{records.replace('_', ' ').capitalize()} {text}"
                points: dict[_Labels, float] = {(_RECEIVER,): float(counts.get(signal, 0))}
                instruments.append(_Instrument(name, text, f"{{{records}}}", True, points))
        forwards = self._read_forwards()
        store: _Labels = (("exporter", "store"),)
        queue_sizes = {store: float(self._backlog.waiting_bytes())}
        queue_capacities = {store: float(self._backlog.limit_bytes)}
        for forward in forwards:
            exporter: _Labels = (("exporter", forward.url),)
            queue_sizes[exporter] = float(forward.sizes.waiting_bytes)
            queue_capacities[exporter] = float(forward.limit_bytes)
        uptime_s = (time.time_ns() - self._start_unix_ns) / 1e9
        return [
            *instruments,
            _Instrument(
                f"{_PREFIX}_requests",
                "Requests by outcome",
                "{requests}",
                True,
                _request_points(snapshot),
            ),
            _Instrument(
                "otelcol_exporter_queue_size",
                "Bytes that are acknowledged and not in the store, or not sent on, yet",
                "By",
                False,
                queue_sizes,
            ),
            _Instrument(
                "otelcol_exporter_queue_capacity",
                "The most of them",
                "By",
                False,
                queue_capacities,
            ),
            *_forward_instruments(forwards),
            _Instrument(
                "otelcol_process_memory_rss",
                "Resident memory",
                "By",
                False,
                {(): float(read_resident_bytes())},
            ),
            _Instrument(
                "otelcol_process_uptime", "Time since the start", "s", True, {(): uptime_s}
            ),
            _Instrument(
                "otelcol_process_cpu_seconds",
                "CPU time, user and system",
                "s",
                True,
                {(): time.process_time()},
            ),
            _Instrument(
                "rootwalk_receiver_memory_reserved",
                "Memory that requests in progress may need",
                "By",
                False,
                {(): float(self._gate.reserved_bytes)},
            ),
        ]


_CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_LATENCY_NAME: Final = f"{_PREFIX}_request_duration"
_LATENCY_TEXT: Final = "Time from the first byte read to the answer"


def _request_points(snapshot: IngestSnapshot) -> dict[_Labels, float]:
    points: dict[_Labels, float] = {}
    for (signal, transport, result), count in snapshot.requests.items():
        labels: _Labels = (_RECEIVER, ("signal", signal), ("transport", transport))
        if result is Result.DURABLE:
            labels = (*labels, ("outcome", "success"))
        else:
            outcome = "failure" if result.is_retryable else "refused"
            labels = (*labels, ("outcome", outcome), ("error.type", result.value))
        points[labels] = float(count)
    return points


def _forward_instruments(forwards: list[ForwardSnapshot]) -> list[_Instrument]:
    if not forwards:
        return []
    requests: dict[_Labels, float] = {}
    failures: dict[_Labels, float] = {}
    dropped: dict[_Labels, float] = {}
    for forward in forwards:
        exporter = ("exporter", forward.url)
        dropped[exporter,] = float(forward.sizes.dropped_bytes)
        for signal, count in forward.sent.items():
            requests[exporter, ("signal", signal), ("outcome", "success")] = float(count)
        for (signal, reason), count in forward.refused.items():
            labels = (exporter, ("signal", signal), ("outcome", "refused"), ("error.type", reason))
            requests[labels] = float(count)
        for reason, count in forward.failed.items():
            failures[exporter, ("error.type", reason)] = float(count)
    name = "rootwalk_forward"
    return [
        _Instrument(
            f"{name}_requests", "Requests sent on, by outcome", "{requests}", True, requests
        ),
        _Instrument(f"{name}_failures", "Attempts that are repeated", "{attempts}", True, failures),
        _Instrument(f"{name}_dropped", "Bytes given up in a full queue", "By", True, dropped),
    ]


def _latency_points(snapshot: IngestSnapshot) -> list[tuple[_Labels, Latency]]:
    return [
        ((_RECEIVER, ("signal", signal), ("transport", transport)), latency)
        for (signal, transport), latency in sorted(snapshot.latencies.items())
    ]


def _render_latencies(snapshot: IngestSnapshot) -> list[str]:
    if not snapshot.latencies:
        return []
    name = f"{_LATENCY_NAME}_seconds"
    lines = [f"# HELP {name} {_LATENCY_TEXT}", f"# TYPE {name} histogram"]
    for labels, latency in _latency_points(snapshot):
        count = 0
        for bound, bucket in zip((*LATENCY_BOUNDS_S, "+Inf"), latency.buckets, strict=True):
            count += bucket
            lines.append(f"{name}_bucket{_render_labels((*labels, ('le', str(bound))))} {count}")
        lines.append(f"{name}_sum{_render_labels(labels)} {latency.sum_s}")
        lines.append(f"{name}_count{_render_labels(labels)} {count}")
    return lines


def _render_labels(labels: _Labels) -> str:
    # A label's name has no dot in Prometheus. Values are words of ours, and URLs, whose text is quoted as JSON quotes.
    inner = ",".join(f"{name.replace('.', '_')}={json.dumps(value)}" for name, value in labels)
    return f"{{{inner}}}" if inner else ""


def _add_attributes(attributes: Any, labels: _Labels) -> None:
    for key, value in labels:
        attributes.add(key=key).value.string_value = value


def _set_number(point: Any, value: float) -> None:
    if value.is_integer():
        point.as_int = int(value)
    else:
        point.as_double = value
