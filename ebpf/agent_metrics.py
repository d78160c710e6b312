"""The agent's metrics: one request for all, with one Resource for each rank and one for the host.

    set_host, set_rank, set_measurements ──▶ send ──▶ Measurement ──▶ data points ──▶ a thread ──▶ POST /v1/metrics

Values are totals since the start, so a request that is lost costs nothing that the next one does not bring.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opentelemetry.sdk.metrics.export import ResourceMetrics
from opentelemetry.sdk.resources import Resource

from rootwalk.ebpf.availability import Sensor
from rootwalk.ebpf.metric_export import MetricExport, build_resource_metrics
from rootwalk.ebpf.readers import Measurement
from rootwalk.ebpf.thread_totals import RoleTotals
from rootwalk.ebpf.throttling import ThrottlingTotals
from rootwalk.ebpf.unchanged import UnchangedFilter
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.export import metric_interval_s
from rootwalk.instrumentation.identity import Identity, read_host_id
from rootwalk.instrumentation.semconv import TrainingThreadSensor

__all__ = [
    "AgentMetrics",
    "HostState",
    "RankState",
    "build_host_resource",
    "read_resident_bytes",
]

SERVICE_NAME = "rootwalk-agent"

INTERVAL_S = 5.0
# What the end waits for an endpoint that does not answer.
SHUTDOWN_S = 2.0
# The last values of ranks that have ended wait so long, and so many of them, for an endpoint that is away.
ENDED_KEPT_S = 60.0
MAX_ENDED = 256


@dataclass(frozen=True, slots=True)
class HostState:
    """What the host's Resource reports.

    Attributes:
        cpu_s: CPU time of the agent, s.
        resident_bytes: Its resident memory; None when not known.
        program_s: CPU time by BPF program, s; empty without the kernel's statistics.
        dropped: Records dropped since the start, by reason.
        events: Records taken from the scheduler's reader.
        sent_bytes: Bytes of spans sent.
        cost_ratio: What watching cost lately over the time of the steps; None where no step was watched.
        lowered: How many steps of detail were given up for the budget.
    """

    cpu_s: float
    resident_bytes: int | None
    program_s: Mapping[str, float]
    dropped: Mapping[str, int]
    events: int
    sent_bytes: int
    cost_ratio: float | None
    lowered: int


@dataclass(frozen=True, slots=True)
class RankState:
    """What a rank's Resource reports.

    Attributes:
        sensor: A value of `semconv.TrainingThreadSensor`; None when nothing tells thread times.
        totals: Its threads' times.
        throttling: What its control groups tell; None when nothing does.
        level: How much is told of it.
    """

    sensor: str | None
    totals: RoleTotals
    throttling: ThrottlingTotals | None
    level: int


@dataclass(slots=True)
class _Owner:
    """Whose values they are: a rank, or the host.

    Attributes:
        resource: Its Resource.
        start_unix_ns: Since when it is watched.
        own: What the agent knows of it.
        measured: What the readers know of it.
    """

    resource: Resource
    start_unix_ns: int
    own: list[Measurement] = field(default_factory=list)
    measured: list[Measurement] = field(default_factory=list)


def _owner(resource: Mapping[str, str | int]) -> _Owner:
    return _Owner(Resource(dict(resource), schema_url=semconv.SCHEMA_URL), time.time_ns())


class AgentMetrics:
    """Owns what is known of the host and its ranks, and sends it. Everything but the sending is the caller's thread.

    Args:
        endpoint: OTLP/HTTP base URL.
        host_resource: Attributes of the host's Resource.
        sensors: What the probe found.
    """

    def __init__(
        self, endpoint: str, host_resource: Mapping[str, str | int], sensors: Sequence[Sensor]
    ) -> None:
        self._sensors = sensors
        self._host = _owner(host_resource)
        self._ranks: dict[int, _Owner] = {}
        self._host_state: HostState | None = None
        # With the moment of the end; those of the last request, and those for the next.
        self._sent_ended: list[tuple[float, ResourceMetrics]] = []
        self._ended: list[tuple[float, ResourceMetrics]] = []
        self._unchanged = UnchangedFilter()
        self._export = MetricExport(endpoint)
        self._interval_s = metric_interval_s(INTERVAL_S)
        self._next_s = 0.0
        self._is_closed = False

    @property
    def is_due(self) -> bool:
        """Whether the next request may be sent now: the interval is over, and the last one is not under way."""
        return time.monotonic() >= self._next_s and not self._export.is_busy

    def set_sensors(self, sensors: Sequence[Sensor]) -> None:
        """Replace what is told of the sensors."""
        self._sensors = sensors

    def set_host(self, state: HostState) -> None:
        """Replace what the host's Resource reports."""
        self._host_state = state

    def set_rank(self, slot: int, identity: Identity, state: RankState) -> None:
        """Replace what a rank's Resource reports; the first call begins it."""
        rank = self._ranks.get(slot)
        if rank is None:
            rank = self._ranks[slot] = _owner(identity.resource_attributes())
        rank.own = list(_rank_values(state))

    def set_measurements(self, measurements: Iterable[Measurement]) -> None:
        """Replace what the readers know; one that a later call does not repeat ends.

        What stands still is sent once a minute only.
        """
        for owner in (self._host, *self._ranks.values()):
            owner.measured = []
        for one in measurements:
            whose = self._host if one.slot is None else self._ranks.get(one.slot)
            if whose is not None:  # else the rank's Resource begins later, or has ended
                whose.measured.append(one)

    def end_rank(self, slot: int) -> None:
        """Keep a rank's last values for the next request and forget it."""
        rank = self._ranks.pop(slot, None)
        if rank is not None:
            last = build_resource_metrics(
                rank.resource, [*rank.own, *rank.measured], rank.start_unix_ns, time.time_ns()
            )
            self._ended.append((time.monotonic(), last))
        self._unchanged.forget(slot)

    def send(self) -> None:
        """Send everything in the background; nothing happens while the last request is under way."""
        if self._export.is_busy:
            return
        self._next_s = time.monotonic() + self._interval_s
        self._settle()
        now_unix_ns = time.time_ns()
        self._host.own = [*_sensor_values(self._sensors)]
        if self._host_state is not None:
            self._host.own += _host_values(self._host_state)
        resources = [last for _, last in self._ended]
        self._sent_ended, self._ended = self._ended, []
        for slot, owner in ((None, self._host), *self._ranks.items()):
            values = [*owner.own, *self._unchanged.choose(slot, owner.measured)]
            resources.append(
                build_resource_metrics(owner.resource, values, owner.start_unix_ns, now_unix_ns)
            )
        self._export.start(resources)

    def _settle(self) -> None:
        """Forget what the last request has brought; what it has not goes with the next one."""
        if self._export.is_taken:
            return
        self._unchanged.forget_all()
        too_old_s = time.monotonic() - ENDED_KEPT_S
        waiting = [*self._sent_ended, *self._ended]
        self._ended = [one for one in waiting if one[0] >= too_old_s][-MAX_ENDED:]

    def close(self) -> None:
        """Send the last values of everything; safe twice."""
        if self._is_closed:
            return
        self._is_closed = True
        deadline_s = time.monotonic() + SHUTDOWN_S
        if self._export.wait(SHUTDOWN_S):
            self.send()
            self._export.wait(deadline_s - time.monotonic())
        self._export.close()


def _rank_values(state: RankState) -> Iterator[Measurement]:
    if state.sensor is not None:
        for (role, name), seconds in state.totals.seconds_by_state().items():
            attributes = {
                semconv.TRAINING_THREAD_ROLE: role,
                semconv.TRAINING_THREAD_STATE: name,
                semconv.TRAINING_THREAD_SENSOR: state.sensor,
            }
            yield Measurement(semconv.METRIC_TRAINING_THREAD_TIME, seconds, attributes)
    if state.sensor not in (None, TrainingThreadSensor.PROC.value):
        for (role, kind), seconds in state.totals.seconds_by_aggressor().items():
            attributes = {
                semconv.TRAINING_THREAD_ROLE: role,
                semconv.TRAINING_AGGRESSOR_KIND: kind,
            }
            yield Measurement(semconv.METRIC_TRAINING_THREAD_CONTENTION_TIME, seconds, attributes)
    yield Measurement(semconv.METRIC_ROOTWALK_AGENT_LEVEL, state.level)
    known = state.throttling
    if known is not None:
        yield Measurement(
            semconv.METRIC_TRAINING_CGROUP_CPU_THROTTLED_TIME, known.throttled_ns / 1e9
        )
        yield Measurement(
            semconv.METRIC_TRAINING_CGROUP_CPU_THROTTLED_PERIODS, known.throttled_periods
        )
        yield Measurement(semconv.METRIC_TRAINING_CGROUP_CPU_PERIODS, known.periods)
        if known.limit is not None:
            yield Measurement(semconv.METRIC_TRAINING_CGROUP_CPU_LIMIT, known.limit.cpus)


def _host_values(state: HostState) -> Iterator[Measurement]:
    single: dict[str, float | None] = {
        semconv.METRIC_ROOTWALK_AGENT_CPU_TIME: state.cpu_s,
        semconv.METRIC_ROOTWALK_AGENT_MEMORY_USAGE: state.resident_bytes,
        semconv.METRIC_ROOTWALK_AGENT_EVENTS: state.events,
        semconv.METRIC_ROOTWALK_AGENT_SENT_SIZE: state.sent_bytes,
        semconv.METRIC_ROOTWALK_AGENT_COST_RATIO: state.cost_ratio,
        semconv.METRIC_ROOTWALK_AGENT_DETAIL_LOWERED: state.lowered,
    }
    for metric, value in single.items():
        if value is not None:
            yield Measurement(metric, value)
    for name, seconds in state.program_s.items():
        attributes = {semconv.ROOTWALK_BPF_PROGRAM_NAME: name}
        yield Measurement(semconv.METRIC_ROOTWALK_BPF_RUN_TIME, seconds, attributes)
    for reason, count in state.dropped.items():
        attributes = {semconv.ROOTWALK_DROP_REASON: reason}
        yield Measurement(semconv.METRIC_ROOTWALK_DROPPED, count, attributes)


def _sensor_values(sensors: Iterable[Sensor]) -> Iterator[Measurement]:
    for sensor in sensors:
        attributes: dict[str, str | int] = {
            semconv.ROOTWALK_SENSOR_NAME: sensor.sensor,
            semconv.ROOTWALK_SENSOR_STATUS: sensor.status.value,
            semconv.ROOTWALK_SENSOR_TIER: sensor.tier,
        }
        if sensor.reason is not None:
            attributes[semconv.ROOTWALK_SENSOR_REASON] = sensor.reason.value
        if sensor.backend is not None:
            attributes[semconv.ROOTWALK_SENSOR_BACKEND] = sensor.backend
        yield Measurement(semconv.METRIC_ROOTWALK_SENSOR_STATE, 1, attributes)


def build_host_resource(job: str | None) -> dict[str, str | int]:
    """Return the attributes of the host's Resource, for an agent that follows one job, or None for all."""
    attributes: dict[str, str | int] = {
        semconv.SERVICE_NAME: SERVICE_NAME,
        semconv.HOST_ID: read_host_id(),
        semconv.HOST_NAME: socket.gethostname(),
    }
    if job is not None:
        attributes[semconv.TRAINING_JOB_ID] = job
    return attributes


def read_resident_bytes() -> int | None:
    """Return this process's resident memory; None where it cannot be read."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize()
