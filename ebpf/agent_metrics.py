"""The agent's metrics, through the OpenTelemetry SDK: one Resource for each rank, one for the host.

The SDK collects on threads of its own; they only ever see snapshots that the agent's loop replaces as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider

from rootwalk.ebpf.availability import Sensor
from rootwalk.ebpf.readers import Measurement
from rootwalk.ebpf.thread_totals import RoleTotals
from rootwalk.ebpf.throttling import ThrottlingTotals
from rootwalk.ebpf.unchanged import UnchangedFilter
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.export import build_meter_provider, product_version
from rootwalk.instrumentation.identity import Identity
from rootwalk.instrumentation.semconv import METRICS, TrainingThreadSensor

__all__ = ["AgentMetrics", "HostState", "RankState"]

SCOPE = "rootwalk.ebpf"
INTERVAL_S = 5.0
# What the end waits for an endpoint that does not answer, all Resources together; and a rank that ends alone.
SHUTDOWN_MS = 2000
RANK_SHUTDOWN_MS = 500
Callback = Callable[[CallbackOptions], Iterable[Observation]]


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


@dataclass(frozen=True, slots=True)
class _RankSnapshot:
    seconds_by_state: Mapping[tuple[str, str], float]
    seconds_by_aggressor: Mapping[tuple[str, str], float]
    throttling: ThrottlingTotals | None
    level: int


def _observe(meter: Meter, name: str, callback: Callback) -> None:
    definition = METRICS[name]
    match definition.instrument:
        case "gauge":
            meter.create_observable_gauge(name, [callback], definition.unit)
        case "updowncounter":
            meter.create_observable_up_down_counter(name, [callback], definition.unit)
        case _:
            meter.create_observable_counter(name, [callback], definition.unit)


class AgentMetrics:
    """Owns the meter providers.

    Args:
        endpoint: OTLP/HTTP base URL.
        host_resource: Attributes of the host's Resource.
        sensors: What the probe found.
    """

    def __init__(
        self, endpoint: str, host_resource: Mapping[str, str | int], sensors: Sequence[Sensor]
    ) -> None:
        self._endpoint = endpoint
        self._sensors = sensors
        self._host_state: HostState | None = None
        self._is_closed = False
        self._providers: dict[int, MeterProvider] = {}
        self._ranks: dict[int, _RankSnapshot] = {}
        self._registered: set[tuple[int | None, str]] = set()
        self._measured: dict[tuple[int | None, str], list[Observation]] = {}
        self._unchanged = UnchangedFilter()
        self._host_provider = build_meter_provider(host_resource, endpoint, interval_s=INTERVAL_S)
        self._observe_host(self._host_provider.get_meter(SCOPE, product_version()))

    def set_sensors(self, sensors: Sequence[Sensor]) -> None:
        """Replace what is told of the sensors."""
        self._sensors = sensors

    def set_host(self, state: HostState) -> None:
        """Replace what the host's Resource reports."""
        self._host_state = state

    def set_rank(self, slot: int, identity: Identity, state: RankState) -> None:
        """Replace what a rank's Resource reports; the first call begins it."""
        totals = state.totals
        self._ranks[slot] = _RankSnapshot(
            totals.seconds_by_state(),
            totals.seconds_by_aggressor(),
            state.throttling,
            state.level,
        )
        if slot not in self._providers:
            provider = build_meter_provider(
                identity.resource_attributes(), self._endpoint, interval_s=INTERVAL_S
            )
            self._providers[slot] = provider
            meter = provider.get_meter(SCOPE, product_version())
            if state.sensor is not None:
                self._observe_threads(meter, slot, state.sensor)
            self._observe_throttling(meter, slot)
            self._observe_level(meter, slot)

    def set_measurements(self, measurements: Iterable[Measurement]) -> None:
        """Replace what the readers know; one that a later call does not repeat ends.

        What stands still is sent once a minute only.
        """
        found: dict[tuple[int | None, str], list[Observation]] = {}
        for one in measurements:
            place = (one.slot, one.metric)
            found.setdefault(place, []).append(Observation(one.value, one.attributes))
        new = found.keys() - self._registered
        self._measured = found
        for slot, metric in sorted(new, key=str):
            provider = self._host_provider if slot is None else self._providers.get(slot)
            if provider is None:
                continue  # the rank's Resource begins later, or has ended
            self._registered.add((slot, metric))
            meter = provider.get_meter(SCOPE, product_version())
            _observe(meter, metric, partial(self._observed, slot, metric))

    def _observed(self, slot: int | None, metric: str, _: CallbackOptions) -> list[Observation]:
        return self._unchanged.choose((slot, metric), self._measured.get((slot, metric), ()))

    def end_rank(self, slot: int, timeout_ms: int = RANK_SHUTDOWN_MS) -> None:
        """Send a rank's last values and forget it."""
        provider = self._providers.pop(slot, None)
        if provider is not None:
            provider.shutdown(timeout_millis=timeout_ms)
        self._ranks.pop(slot, None)
        for place in [place for place in self._registered if place[0] == slot]:
            self._registered.remove(place)
            self._unchanged.forget(place)

    def close(self) -> None:
        """Send the last values of everything; safe twice."""
        if self._is_closed:
            return
        self._is_closed = True
        timeout_ms = SHUTDOWN_MS // (1 + len(self._providers))
        for slot in list(self._providers):
            self.end_rank(slot, timeout_ms)
        self._host_provider.shutdown(timeout_millis=timeout_ms)

    def _observe_threads(self, meter: Meter, slot: int, sensor: str) -> None:
        def thread_time(_: CallbackOptions) -> Iterable[Observation]:
            snapshot = self._ranks.get(slot)
            for (role, state), seconds in snapshot.seconds_by_state.items() if snapshot else ():
                attributes = {
                    semconv.TRAINING_THREAD_ROLE: role,
                    semconv.TRAINING_THREAD_STATE: state,
                    semconv.TRAINING_THREAD_SENSOR: sensor,
                }
                yield Observation(seconds, attributes)

        def contention_time(_: CallbackOptions) -> Iterable[Observation]:
            snapshot = self._ranks.get(slot)
            for (role, kind), seconds in snapshot.seconds_by_aggressor.items() if snapshot else ():
                attributes = {
                    semconv.TRAINING_THREAD_ROLE: role,
                    semconv.TRAINING_AGGRESSOR_KIND: kind,
                }
                yield Observation(seconds, attributes)

        _observe(meter, semconv.METRIC_TRAINING_THREAD_TIME, thread_time)
        if sensor != TrainingThreadSensor.PROC.value:
            _observe(meter, semconv.METRIC_TRAINING_THREAD_CONTENTION_TIME, contention_time)

    def _observe_level(self, meter: Meter, slot: int) -> None:
        def level(_: CallbackOptions) -> Iterable[Observation]:
            snapshot = self._ranks.get(slot)
            return [] if snapshot is None else [Observation(snapshot.level)]

        _observe(meter, semconv.METRIC_ROOTWALK_AGENT_LEVEL, level)

    def _observe_throttling(self, meter: Meter, slot: int) -> None:
        def one(value: Callable[[ThrottlingTotals], float | None]) -> Callback:
            def callback(_: CallbackOptions) -> Iterable[Observation]:
                snapshot = self._ranks.get(slot)
                known = snapshot.throttling if snapshot is not None else None
                found = value(known) if known is not None else None
                return [] if found is None else [Observation(found)]

            return callback

        _observe(
            meter,
            semconv.METRIC_TRAINING_CGROUP_CPU_THROTTLED_TIME,
            one(lambda totals: totals.throttled_ns / 1e9),
        )
        _observe(
            meter,
            semconv.METRIC_TRAINING_CGROUP_CPU_THROTTLED_PERIODS,
            one(lambda totals: totals.throttled_periods),
        )
        _observe(
            meter,
            semconv.METRIC_TRAINING_CGROUP_CPU_PERIODS,
            one(lambda totals: totals.periods),
        )
        _observe(
            meter,
            semconv.METRIC_TRAINING_CGROUP_CPU_LIMIT,
            one(lambda totals: totals.limit.cpus if totals.limit is not None else None),
        )

    def _observe_host(self, meter: Meter) -> None:
        def sensor_state(_: CallbackOptions) -> Iterable[Observation]:
            for sensor in self._sensors:
                attributes: dict[str, str | int] = {
                    semconv.ROOTWALK_SENSOR_NAME: sensor.sensor,
                    semconv.ROOTWALK_SENSOR_STATUS: sensor.status.value,
                    semconv.ROOTWALK_SENSOR_TIER: sensor.tier,
                }
                if sensor.reason is not None:
                    attributes[semconv.ROOTWALK_SENSOR_REASON] = sensor.reason.value
                if sensor.backend is not None:
                    attributes[semconv.ROOTWALK_SENSOR_BACKEND] = sensor.backend
                yield Observation(1, attributes)

        def one(value: Callable[[HostState], float | None]) -> Callback:
            def callback(_: CallbackOptions) -> Iterable[Observation]:
                found = value(self._host_state) if self._host_state else None
                return [] if found is None else [Observation(found)]

            return callback

        def run_time(_: CallbackOptions) -> Iterable[Observation]:
            for name, seconds in (self._host_state.program_s if self._host_state else {}).items():
                yield Observation(seconds, {semconv.ROOTWALK_BPF_PROGRAM_NAME: name})

        def dropped(_: CallbackOptions) -> Iterable[Observation]:
            for reason, count in (self._host_state.dropped if self._host_state else {}).items():
                yield Observation(count, {semconv.ROOTWALK_DROP_REASON: reason})

        _observe(meter, semconv.METRIC_ROOTWALK_SENSOR_STATE, sensor_state)
        _observe(meter, semconv.METRIC_ROOTWALK_AGENT_CPU_TIME, one(lambda s: s.cpu_s))
        _observe(meter, semconv.METRIC_ROOTWALK_AGENT_MEMORY_USAGE, one(lambda s: s.resident_bytes))
        _observe(meter, semconv.METRIC_ROOTWALK_AGENT_EVENTS, one(lambda s: s.events))
        _observe(meter, semconv.METRIC_ROOTWALK_AGENT_SENT_SIZE, one(lambda s: s.sent_bytes))
        _observe(meter, semconv.METRIC_ROOTWALK_AGENT_COST_RATIO, one(lambda s: s.cost_ratio))
        _observe(meter, semconv.METRIC_ROOTWALK_AGENT_DETAIL_LOWERED, one(lambda s: s.lowered))
        _observe(meter, semconv.METRIC_ROOTWALK_BPF_RUN_TIME, run_time)
        _observe(meter, semconv.METRIC_ROOTWALK_DROPPED, dropped)
