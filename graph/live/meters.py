"""What findings and steps of one job add up to, as metrics: for alerts and dashboards, where no trace is looked at.

    training.step.duration         histogram   each step of the whole job
    rootwalk.finding.lost.time     counter     seconds lost, by reason, layer, owner, rank and host
    rootwalk.finding.count         counter     findings that were opened, by the same
    rootwalk.finding.open          sum         findings that are open now, by the same

Pure: knows neither store nor clock. Of culprits there are few, and their number is bounded all the same: past
`MAX_CULPRITS` they are counted without rank and host. Sums begin again with the process that watches. While a job
stands still they are sent again each minute, although nothing changes: it must not look well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from rootwalk.graph.live.findings import LiveFinding
from rootwalk.graph.live.telemetry import SCOPE_NAME, describe_culprit, describe_job
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.export import product_version
from rootwalk.instrumentation.log_events import Value, key_values

__all__ = ["MAX_CULPRITS", "STEP_BOUNDS_S", "JobMeter"]

# Series of one job and metric: some 10 in a bad week, and a bound for whoever has a new culprit every step.
MAX_CULPRITS: Final = 256
# Steps take milliseconds to minutes; three bounds a decade tell a slowdown of a tenth only by the sum over the count.
STEP_BOUNDS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

# Prometheus forgets a series without a new point after 5 minutes, and an alert on it ends; four points may be lost.
REPEAT_NS: Final = 60 * 1_000_000_000

Culprit = tuple[tuple[str, Value], ...]
_CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_WITHOUT: Final = (semconv.TRAINING_RANK, semconv.HOST_NAME)


class JobMeter:
    """The sums of one job and attempt.

    Args:
        job: Its id.
        attempt: Its attempt.
        start_unix_ns: Since when it counts.
    """

    def __init__(self, job: str, attempt: int, start_unix_ns: int) -> None:
        self._job = job
        self._attempt = attempt
        self._start_unix_ns = start_unix_ns
        self._buckets = [0] * (len(STEP_BOUNDS_S) + 1)
        self._steps_s = 0.0
        self._lost_s: dict[str, float] = {}
        self._culprit: dict[str, Culprit] = {}
        self._open: set[str] = set()
        # Of findings that nobody knows any more: seconds and number, by culprit.
        self._settled: dict[Culprit, tuple[float, int]] = {}
        self._is_new = False
        self._sent_unix_ns = 0
        self._stands_still = False

    def add_steps(self, durations_s: Iterable[float]) -> None:
        """Enter steps that have ended, seconds."""
        for duration_s in durations_s:
            self._buckets[bisect_left(STEP_BOUNDS_S, duration_s)] += 1
            self._steps_s += duration_s
            self._is_new = True

    def add_findings(self, findings: Iterable[LiveFinding]) -> None:
        """Enter all findings that are known now; what one has lost never becomes less, although its share may."""
        before = dict(self._lost_s), set(self._open)
        known = list(findings)
        for key in self._culprit.keys() - {finding.id for finding in known}:
            self._settle(key)
        for finding in known:
            self._culprit.setdefault(finding.id, self._bounded(describe_culprit(finding)))
            steps = finding.last_step - finding.first_step + 1
            lost_s = max((finding.share_s or 0.0) * steps, 0.0)
            self._lost_s[finding.id] = max(self._lost_s.get(finding.id, 0.0), lost_s)
            (self._open.add if finding.is_open else self._open.discard)(finding.id)
        self._is_new |= before != (self._lost_s, self._open)

    def add_stuck(
        self, findings: Iterable[LiveFinding], stuck: Iterable[LiveFinding], now_unix_ns: int
    ) -> None:
        """Enter all findings that are known now, those about a job that stands still with the time that it has.

        Args:
            findings: About slow steps.
            stuck: About a job that stands, or stood, still.
            now_unix_ns: The end of a stop that goes on.
        """
        stops = list(stuck)
        self._stands_still = any(finding.is_open for finding in stops)
        self.add_findings([*findings, *stops])
        for finding in stops:
            if finding.onset_unix_ns is None:
                continue
            until_ns = now_unix_ns if finding.is_open else finding.closed_unix_ns or now_unix_ns
            lost_s = max(0, until_ns - finding.onset_unix_ns) / 1e9
            self._is_new |= not finding.is_open and self._lost_s[finding.id] < lost_s
            self._lost_s[finding.id] = max(self._lost_s[finding.id], lost_s)

    def take(self, now_unix_ns: int) -> ExportMetricsServiceRequest | None:
        """Return the sums as one export request, None where there is nothing to tell since the last one."""
        is_due = self._stands_still and now_unix_ns - self._sent_unix_ns >= REPEAT_NS
        if not (self._is_new or is_due):
            return None
        self._is_new, self._sent_unix_ns = False, now_unix_ns
        request = ExportMetricsServiceRequest()
        group = request.resource_metrics.add(schema_url=semconv.SCHEMA_URL)
        group.resource.attributes.extend(key_values(describe_job(self._job, self._attempt)))
        scope = group.scope_metrics.add(schema_url=semconv.SCHEMA_URL)
        scope.scope.name, scope.scope.version = SCOPE_NAME, product_version()
        times = {"start_time_unix_nano": self._start_unix_ns, "time_unix_nano": now_unix_ns}
        if any(self._buckets):
            steps = _add_metric(scope, semconv.METRIC_TRAINING_STEP_DURATION).histogram
            steps.aggregation_temporality = _CUMULATIVE
            steps.data_points.add(
                **times,
                count=sum(self._buckets),
                sum=self._steps_s,
                bucket_counts=self._buckets,
                explicit_bounds=STEP_BOUNDS_S,
            )
        lost_s = {culprit: total for culprit, (total, _) in self._settled.items()}
        count = {culprit: number for culprit, (_, number) in self._settled.items()}
        opened = dict.fromkeys(self._settled, 0)
        for key, culprit in self._culprit.items():
            lost_s[culprit] = lost_s.get(culprit, 0.0) + self._lost_s[key]
            count[culprit] = count.get(culprit, 0) + 1
            opened[culprit] = opened.get(culprit, 0) + (key in self._open)
        _add_sum(scope, semconv.METRIC_ROOTWALK_FINDING_LOST_TIME, lost_s, times)
        _add_sum(scope, semconv.METRIC_ROOTWALK_FINDING_COUNT, count, times)
        _add_sum(scope, semconv.METRIC_ROOTWALK_FINDING_OPEN, opened, times)
        return request

    def _settle(self, key: str) -> None:
        """Keep of a finding only what it adds to its culprit's sums."""
        culprit = self._culprit.pop(key)
        total, number = self._settled.get(culprit, (0.0, 0))
        self._settled[culprit] = total + self._lost_s.pop(key), number + 1
        self._open.discard(key)

    def _bounded(self, attributes: dict[str, Value]) -> Culprit:
        culprit = tuple(attributes.items())
        known = self._settled.keys() | set(self._culprit.values())
        if culprit in known or len(known) < MAX_CULPRITS:
            return culprit
        return tuple(item for item in culprit if item[0] not in _WITHOUT)


def _add_metric(scope: Any, name: str) -> Metric:
    definition = semconv.METRICS[name]
    metric: Metric = scope.metrics.add(name=name, unit=definition.unit)
    return metric


def _add_sum(
    scope: Any, name: str, values: Mapping[Culprit, float], times: Mapping[str, int]
) -> None:
    """Add one metric with a point for each culprit, unless there is none."""
    if not values:
        return
    metric = _add_metric(scope, name).sum
    metric.aggregation_temporality = _CUMULATIVE
    metric.is_monotonic = semconv.METRICS[name].instrument == "counter"
    for culprit, value in values.items():
        number = {"as_int": value} if isinstance(value, int) else {"as_double": value}
        metric.data_points.add(**times, **number, attributes=key_values(dict(culprit)))
