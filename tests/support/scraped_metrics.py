"""node-exporter's and dcgm-exporter's metrics as a Collector's Prometheus receiver sends them on, of made-up hosts.

Names and labels are those of the exporters; the resource is what the receiver makes of a target: its address, never the
host's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from support.otlp_messages import key_values, metric, metric_request

START_UNIX_NS = 1_790_000_000 * 10**9
SCRAPE_S = 15

# What a host or device does at each scrape: its number, for a counter the growth a second until the next.
Curve = Callable[[int, int, int], float]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts with GPUs, scraped so many times; a curve is asked with host, device and number of the scrape."""

    hosts: int = 4
    gpus: int = 4
    scrapes: int = 60
    busy: Curve = lambda host, gpu, scrape: 95.0 + (host + gpu + scrape) % 3
    clock: Curve = lambda host, gpu, scrape: 1980.0 - 5.0 * ((gpu + scrape) % 2)
    disk: Curve = lambda host, disk, scrape: 0.02 + 0.01 * ((host + scrape) % 3)
    reads: Curve = lambda host, disk, scrape: 0.03 + 0.01 * ((host + scrape) % 3)

    def requests(self) -> Iterator[bytes]:
        """Return what the receiver sends, two targets a host."""
        for host in range(self.hosts):
            yield metric_request(list(self._node(host)), _target("node-exporter", host, 9100))
            yield metric_request(list(self._dcgm(host)), _target("dcgm-exporter", host, 9400))

    def _node(self, host: int) -> Iterator[Any]:
        uname = [self._points(lambda scrape: 1.0, {"nodename": f"gpu-{host}"})]
        yield _gauge("node_uname_info", uname)
        modes = {"user": 0.3, "system": 0.05, "idle": 0.65, "steal": 0.0, "softirq": 0.0}
        cpus = [
            self._sums(partial(_constant, part), {"cpu": str(cpu), "mode": mode})
            for cpu in range(2)
            for mode, part in modes.items()
        ]
        yield _counter("node_cpu_seconds_total", cpus)
        quiet = self._sums(lambda scrape: 0.01, {"device": "sda"})
        disk = {"device": "nvme0n1"}
        busy = self._sums(lambda scrape: self.disk(host, 0, scrape), disk)
        yield _counter("node_disk_io_time_seconds_total", [busy, quiet])
        reads = self._sums(lambda scrape: self.reads(host, 0, scrape), disk)
        yield _counter("node_disk_read_time_seconds_total", [reads, quiet])
        drops = [self._sums(lambda scrape: 0.0, {"device": device}) for device in ("lo", "eth0")]
        yield _counter("node_network_receive_drop_total", drops)
        yield _counter("node_vmstat_pgmajfault", [self._sums(lambda scrape: 0.1, {})])

    def _dcgm(self, host: int) -> Iterator[Any]:
        def each(curve: Curve) -> list[list[dict[str, Any]]]:
            return [
                self._points(
                    partial(curve, host, gpu),
                    {"gpu": str(gpu), "UUID": f"GPU-{host}-{gpu}", "Hostname": f"gpu-{host}"},
                )
                for gpu in range(self.gpus)
            ]

        yield _gauge("DCGM_FI_DEV_GPU_UTIL", each(self.busy))
        yield _gauge("DCGM_FI_DEV_SM_CLOCK", each(self.clock))
        yield _gauge("DCGM_FI_DEV_GPU_TEMP", each(lambda host, gpu, scrape: 60.0 + gpu))
        yield _gauge("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", each(lambda host, gpu, scrape: 0.0))

    def _points(
        self, value: Callable[[int], float], labels: dict[str, str]
    ) -> list[dict[str, Any]]:
        return [
            {
                "as_double": value(scrape),
                "time_unix_nano": START_UNIX_NS + scrape * SCRAPE_S * 10**9,
                "attributes": key_values(labels),
            }
            for scrape in range(self.scrapes)
        ]

    def _sums(self, growth: Callable[[int], float], labels: dict[str, str]) -> list[dict[str, Any]]:
        total, points = 1000.0, self._points(growth, labels)
        for point in points:
            rate = point["as_double"]
            point["as_double"], point["start_time_unix_nano"] = total, START_UNIX_NS
            total += rate * SCRAPE_S
        return points


def _constant(value: float, scrape: int) -> float:
    return value


def _target(job: str, host: int, port: int) -> dict[str, Any]:
    return {
        "service.name": job,
        "service.instance.id": f"10.0.0.{host}:{port}",
        "server.address": f"10.0.0.{host}",
        "server.port": str(port),
        "url.scheme": "http",
    }


def _gauge(name: str, series: list[list[dict[str, Any]]]) -> Any:
    return metric(name, gauge={"data_points": [point for one in series for point in one]})


def _counter(name: str, series: list[list[dict[str, Any]]]) -> Any:
    points = [point for one in series for point in one]
    cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    fields = {"aggregation_temporality": cumulative, "is_monotonic": True}
    return metric(name, sum={"data_points": points, **fields})
