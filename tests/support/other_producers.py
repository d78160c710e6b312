"""OTLP as other producers send it, beside a simulated job: exporters through a Prometheus receiver, OBI, Datadog.

Names, labels and resources are theirs: node-exporter's and dcgm-exporter's metrics have the target's address in the
resource, OBI's the process, Datadog's spans what its receiver in the Collector makes of them (numbers are doubles).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import save_journal_batch
from support.jobs import NS, START_UNIX_NS
from support.otlp_messages import key_values, metric, metric_request, span, trace_request

SCRAPE_S = 10.0
# Before the job's first step, so that counters have a past.
BEGIN_S = -65.0
# A value at a time, s since the job began.
Value = Callable[[float], float]


def gpu_uuid(host: int, number: int) -> str:
    return f"GPU-5a1c0000-0000-0000-{host:04}-{number:012}"


def node_exporter(host: int, name: str, series: Mapping[Any, Value], *labels: str) -> bytes:
    """One counter or, where it is no total, gauge of a host; `series` by the values of its labels."""
    sent = _metric(name, {tuple(zip(labels, key, strict=True)): v for key, v in series.items()})
    uname = _metric("node_uname_info", {(("nodename", f"host-{host}"),): lambda now: 1.0})
    return metric_request([uname, sent], _target("node-exporter", host, 9100))


def dcgm_exporter(host: int, name: str, values: Iterable[Value]) -> bytes:
    """One metric of each GPU of a host."""
    series = {
        (
            ("gpu", str(number)),
            ("UUID", gpu_uuid(host, number)),
            ("Hostname", f"host-{host}"),
        ): value
        for number, value in enumerate(values)
    }
    return metric_request([_metric(name, series)], _target("dcgm-exporter", host, 9400))


def obi(host: int, pid: int, values: Mapping[str, Value], gpu: str | None = None) -> bytes:
    """What OBI counts of one process."""
    labels = () if gpu is None else (("cuda.device.uuid", gpu.removeprefix("GPU-")),)
    resource = {
        "service.name": "train",
        "service.instance.id": f"host-{host}:{pid}",
        "host.name": f"host-{host}",
        "telemetry.sdk.name": "opentelemetry-ebpf-instrumentation",
    }
    return metric_request(
        [_metric(name, {labels: value}) for name, value in values.items()], resource
    )


def datadog_rank(rank: int, host: int, gpu: str, job: str = "run-7") -> bytes:
    """The span of a rank's life, ten minutes of it."""
    attributes = {
        "rank": float(rank),
        "world_size": 4.0,
        "framework": "ddp",
        "component": "pytorch",
        "training_job.id": job,
        "device.id": gpu,
        "device.kind": "cuda",
        "host": f"host-{host}",
        "datadog.span.id": "1",
    }
    times = {"start_time_unix_nano": START_UNIX_NS, "end_time_unix_nano": START_UNIX_NS + 600 * NS}
    sent = span(1000 + rank, "pytorch.rank", attributes=attributes, **times)
    resource = {"service.name": "train", "telemetry.sdk.name": "Datadog"}
    return trace_request([sent], resource, "Datadog")


def receive(path: Path, signal: Signal, bodies: Iterable[bytes]) -> None:
    """Put requests into a store as the receiver does."""
    records = [
        JournalRecord(signal, START_UNIX_NS, body, 1, at) for at, body in enumerate(bodies, 1)
    ]
    if records:
        save_journal_batch(path, records)


def _metric(name: str, series: Mapping[Any, Value]) -> Any:
    points = [
        {
            "as_double": float(value(BEGIN_S + number * SCRAPE_S)),
            "time_unix_nano": START_UNIX_NS + round((BEGIN_S + number * SCRAPE_S) * NS),
            "attributes": key_values(dict(labels)),
        }
        for labels, value in series.items()
        for number in range(22)
    ]
    if name.startswith("DCGM_FI_DEV_ECC") or name.endswith(
        ("_total", "_pswpin", ".calls", ".bytes")
    ):
        cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        fields = {"aggregation_temporality": cumulative, "is_monotonic": True}
        return metric(name, sum={"data_points": points, **fields})
    return metric(name, gauge={"data_points": points})


def _target(job: str, host: int, port: int) -> dict[str, Any]:
    return {
        "service.name": job,
        "service.instance.id": f"10.0.0.{host}:{port}",
        "server.address": f"10.0.0.{host}",
        "server.port": str(port),
        "url.scheme": "http",
    }
