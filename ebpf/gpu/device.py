"""One GPU as it is read over time: what it answers, what it refuses and why, and sums that NVML does not keep.

Runs in the helper process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from rootwalk.ebpf.gpu import calls
from rootwalk.ebpf.gpu.calls import Call, Fields, pcie_rate
from rootwalk.ebpf.gpu.nvml import Device, Nvml, NvmlError
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingGpuThrottleReason as Throttle

__all__ = ["DeviceReading"]

MEDIUM_INTERVAL_S, SLOW_INTERVAL_S = 5.0, 60.0
# A look that came late says nothing of the time before: a bit counts for so much at most.
MAX_LOOK_S = 3.0
# The link rests at a low generation while nothing is moved: the highest of so many looks tells what it can carry.
PCIE_LOOKS = 6
# NVLink knows up to 18 links a GPU.
MAX_LINKS = 18
# Answers that do not change while the driver is the same.
_FOR_GOOD = frozenset({"NOT_SUPPORTED", "FUNCTION_NOT_FOUND"})
LOST = frozenset({"GPU_IS_LOST", "UNINITIALIZED", "RESET_REQUIRED"})
# NVML_P2P_CAPS_INDEX_READ; the binding's constant of that name is a tuple by mistake.
P2P_READ = 0
VGPU = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU


class DeviceReading:
    """Reads one GPU.

    Args:
        nvml: The library.
        device: The GPU.
        clock_s: Monotonic clock, s.
    """

    def __init__(
        self, nvml: Nvml, device: Device, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._nvml = nvml
        self.device = device
        self._clock_s = clock_s
        self.values: dict[str, float] = {}
        self.processes: dict[int, int | None] | None = None
        self.is_lost = False
        # Metric: the name of NVML's last error.
        self._refused: dict[str, str] = {}
        self._given_up: set[Any] = set()
        self._told: dict[Call, tuple[str, ...]] = {}
        self._held_s: dict[Throttle, float] = {}
        self._counted_s: dict[Throttle, float | None] = {}
        self._looked_s: float | None = None
        self._next_medium_s = self._next_slow_s = 0.0
        self._rates: deque[float] = deque(maxlen=PCIE_LOOKS)
        self._links: int | None = None
        name = self._ask(semconv.METRIC_HW_STATUS, "nvmlDeviceGetName")
        self.name = "" if name is None else _text(name)
        info = self._ask(semconv.METRIC_HW_STATUS, "nvmlDeviceGetPciInfo")
        self.bus = "" if info is None else _text(info.busId)
        mode = self._ask(semconv.METRIC_HW_STATUS, "nvmlDeviceGetVirtualizationMode")
        # A part of a GPU that a hypervisor shows as one.
        self.is_vgpu = mode == VGPU
        self._refused.clear()

    def look(self, peers: Iterable[Device]) -> None:
        """Read what is due."""
        now_s = self._clock_s()
        self.is_lost = False
        for call in calls.FAST:
            self._tell(call)
        self._look_at_throttling(now_s, is_due=now_s >= self._next_medium_s)
        self._look_at_pcie()
        self._look_at_processes()
        if now_s >= self._next_medium_s and not self.is_lost:
            self._next_medium_s = now_s + MEDIUM_INTERVAL_S
            for call in calls.MEDIUM:
                self._tell(call)
            self._take_fields(calls.COUNTED_FIELDS)
            self._look_at_links()
            self._look_at_peers(peers)
        if now_s >= self._next_slow_s and not self.is_lost:
            self._next_slow_s = now_s + SLOW_INTERVAL_S
            for call in calls.SLOW:
                self._tell(call)
            self._look_at_limits()
        self._looked_s = now_s
        if self.is_lost:
            self.lose()

    def lose(self) -> None:
        """Forget what it told before: it is not what is."""
        self.is_lost = True
        self.values.clear()
        self._told.clear()
        self._counted_s.clear()
        self._next_medium_s = self._next_slow_s = 0.0
        self.processes = None

    @property
    def missing(self) -> dict[str, str]:
        """Return the metrics of which nothing is known now, with the name of NVML's error."""
        known = {name.partition("|")[0] for name in self.values}
        return {metric: error for metric, error in self._refused.items() if metric not in known}

    def _ask(self, metric: str, function: str, *arguments: Any) -> Any:
        """Return an answer; None when it is refused."""
        key = (function, arguments)
        if key in self._given_up:
            return None
        try:
            return self._nvml.call(function, self.device.handle, *arguments)
        except NvmlError as error:
            self._refused[metric] = error.name
            if error.name in _FOR_GOOD:
                self._given_up.add(key)
            self.is_lost = self.is_lost or error.name in LOST
            return None

    def _tell(self, call: Call) -> None:
        answer = self._ask(call.metric, call.function, *call.arguments)
        for name in self._told.pop(call, ()):
            self.values.pop(name, None)
        if answer is not None:
            told = dict(call.tell(answer))
            self.values.update(told)
            self._told[call] = tuple(told)

    def _set(self, name: str, value: float | None) -> None:
        if value is None:
            self.values.pop(name, None)
        else:
            self.values[name] = value

    def _look_at_throttling(self, now_s: float, *, is_due: bool) -> None:
        """Take the driver's own sums where it has them; else add up the time between looks while a bit is set.

        Each sum takes a data-centre driver 0.6 to 1.2 ms (H200): it is asked for while its bit is set, else seldom.

        Args:
            now_s: The time.
            is_due: Ask for sums whose bits are not set, too.
        """
        metric = semconv.METRIC_TRAINING_GPU_THROTTLED_TIME
        bits = self._ask(metric, "nvmlDeviceGetCurrentClocksEventReasons")
        passed_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, MAX_LOOK_S)
        for reason, mask in calls.BITS:
            policy = calls.VIOLATIONS.get(reason)
            if policy is not None and (is_due or bits is None or bits & mask):
                counted = self._ask(metric, "nvmlDeviceGetViolationStatus", policy)
                told_s = None if counted is None else counted.violationTime * calls.NANO
                self._counted_s[reason] = told_s
            held_s = self._held_s.get(reason, 0.0)
            if bits is not None and bits & mask:
                held_s += passed_s
            self._held_s[reason] = held_s
            total_s: float | None = None if bits is None else held_s
            counted_s = self._counted_s.get(reason)
            if counted_s is not None:
                total_s = counted_s
            self._set(calls.throttled(reason), total_s)
            self._set(
                calls.throttle_state(reason), None if bits is None else float(bool(bits & mask))
            )

    def _look_at_pcie(self) -> None:
        metric = semconv.METRIC_TRAINING_GPU_PCIE_BANDWIDTH_LIMIT
        generation = self._ask(metric, "nvmlDeviceGetCurrPcieLinkGeneration")
        width = self._ask(metric, "nvmlDeviceGetCurrPcieLinkWidth")
        rate = None if generation is None or width is None else pcie_rate(generation, width)
        if rate is None:
            self._rates.clear()
        else:
            self._rates.append(rate)
        self._set(metric, max(self._rates, default=None))
        self._set(semconv.METRIC_TRAINING_GPU_PCIE_GENERATION, generation)
        self._set(semconv.METRIC_TRAINING_GPU_PCIE_WIDTH, width)

    def _look_at_processes(self) -> None:
        metric = semconv.METRIC_TRAINING_GPU_PROCESSES
        found = self._ask(metric, "nvmlDeviceGetComputeRunningProcesses")
        self.processes = None
        if found is not None:
            self._refused.pop(metric, None)
            self.processes = {one.pid: one.usedGpuMemory for one in found}

    def _take_fields(self, fields: Fields) -> None:
        """Read numbered fields; those of one value are added up."""
        answers: list[int | None] = [None] * len(fields.asked)
        error = "NOT_SUPPORTED"
        try:
            answers = self._nvml.fields(self.device.handle, fields.asked)
        except NvmlError as refusal:
            error = refusal.name
            self.is_lost = self.is_lost or error in LOST
        totals: dict[str, float | None] = {}
        for (name, unit), answer in zip(fields.told, answers, strict=True):
            if answer is not None:
                totals[name] = (totals.get(name) or 0.0) + answer * unit
            else:
                totals.setdefault(name, None)
        for name, total in totals.items():
            self._set(name, total)
            if total is None:
                self._refused[name.partition("|")[0]] = error

    def _look_at_links(self) -> None:
        """Count the NVLinks that are up, and add up what they count."""
        links = semconv.METRIC_TRAINING_GPU_NVLINK_LINKS
        count = self._count_links()
        states = [self._ask(links, "nvmlDeviceGetNvLinkState", link) for link in range(count)]
        known = [state for state in states if state is not None]
        self._set(links, sum(1 for state in known if state) if known else None)
        if count:
            self._take_fields(calls.link_fields(count))
        else:
            for metric in calls.LINK_METRICS:
                self._refused[metric] = "NOT_SUPPORTED"

    def _count_links(self) -> int:
        if self._links is None:
            try:
                (count,) = self._nvml.fields(self.device.handle, ((calls.LINK_COUNT_FIELD, 0),))
            except NvmlError:
                return 0
            self._links = min(count or 0, MAX_LINKS)
        return self._links

    def _look_at_limits(self) -> None:
        metric = semconv.METRIC_TRAINING_GPU_PCIE_BANDWIDTH_MAX
        generation = self._ask(metric, "nvmlDeviceGetMaxPcieLinkGeneration")
        width = self._ask(metric, "nvmlDeviceGetMaxPcieLinkWidth")
        if generation is not None and width is not None:
            rate = pcie_rate(generation, width)
            if rate is not None:
                self.values[metric] = rate

    def _look_at_peers(self, peers: Iterable[Device]) -> None:
        """Count the GPUs whose memory this one can read, itself among them; nothing where one does not say."""
        metric = semconv.METRIC_TRAINING_GPU_PEERS
        reached = 1
        self.values.pop(metric, None)
        for peer in peers:
            if peer.uuid == self.device.uuid:
                continue
            try:
                status = self._nvml.call(
                    "nvmlDeviceGetP2PStatus", self.device.handle, peer.handle, P2P_READ
                )
            except NvmlError as error:
                self._refused[metric] = error.name
                return
            reached += 1 if status == 0 else 0
        self.values[metric] = reached


def _text(raw: Any) -> str:
    return raw.decode("ascii", errors="replace") if isinstance(raw, bytes) else str(raw)
