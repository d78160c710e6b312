"""What metrics of other producers say, under the names that the rules of counters ask for: as data.

    producer         metric                                   says
    node-exporter    node_cpu_seconds_total                   time of the host's CPUs by mode
                     node_network_…, node_infiniband_…        drops, errors, changes of the link, its rate, by device
                     node_vmstat_pswpin                       pages read from swap
    dcgm-exporter    DCGM_FI_DEV_SM_CLOCK                     clock of a GPU
                     DCGM_FI_DEV_CLOCK…_REASONS               time for which it was held down, by reason
                     DCGM_FI_DEV_ECC_…_VOL_TOTAL              memory errors of a GPU
                     DCGM_FI_DEV_XID_ERRORS                   the driver's last word about a GPU
    OBI              gpu.cuda.….synchronize.calls, .free.…    calls of a rank's process to the CUDA library

Left out: how long DCGM says that a GPU was throttled (`…_VIOLATION`), which is microseconds in some versions and
nanoseconds in others; and what a host counts for all of its processes where a rule asks for a rank.

Source: node-exporter's collectors; NVIDIA/dcgm-exporter, etc/default-counters.csv, and NVML's bits of throttle reasons;
open-telemetry/opentelemetry-ebpf-instrumentation, documentation of GPU monitoring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rootwalk.graph.reasons import Signal
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingGpuThrottleReason as Throttle

__all__ = ["OTHERS", "Of", "OtherMetric", "Shape"]


class Of(StrEnum):
    """What one series is about."""

    HOST = "host"
    GPU = "gpu"  # by its UUID
    PROCESS = "process"  # by its host and pid


class Shape(StrEnum):
    """What its numbers are."""

    AS_IT_IS = "as_it_is"
    BITS = "bits"  # bits of reasons; becomes the time for which one of them was set
    LAST_CODE = (
        "last_code"  # a number that stands for the last error; becomes how often it was another
    )


@dataclass(frozen=True, slots=True)
class OtherMetric:
    """One metric of another producer.

    `signal` is what it becomes, with `attributes`. `renamed` is (its label, our attribute, its values and ours): a
    series with another value says nothing. `device` is (its labels, our attribute): their values, joined by a colon.
    `bits` are those of which one must be set. `scale` turns its unit into ours.
    """

    name: str
    signal: Signal
    of: Of = Of.HOST
    attributes: Mapping[str, str] = field(default_factory=dict)
    renamed: tuple[str, str, Mapping[str, str]] | None = None
    device: tuple[tuple[str, ...], str] | None = None
    scale: float = 1.0
    shape: Shape = Shape.AS_IT_IS
    bits: int = 0


_CPU_MODES: Final = {
    "user": "user",
    "nice": "nice",
    "system": "system",
    "irq": "interrupt",
    "softirq": "softirq",
    "steal": "steal",
    "idle": "idle",
    "iowait": "iowait",
}
_INTERFACE: Final = (("device",), semconv.NETWORK_INTERFACE_NAME)
_LINK: Final = (("device",), semconv.HW_ID)
_PORT: Final = (("device", "port"), semconv.HW_ID)
_RDMA_EVENTS: Final = {
    "link_downed_total": "link_downed",
    "link_error_recovery_total": "link_error_recovery",
    "symbol_error_total": "symbol_error",
    "local_link_integrity_errors_total": "local_link_integrity_errors",
    "port_errors_received_total": "port_rcv_errors",
    "port_discards_transmitted_total": "port_xmit_discards",
    "port_transmit_wait_total": "port_xmit_wait",
}
# NVML's bits: heat as software and hardware see it; power as the driver and the supply limit it; a clock set by hand.
_THROTTLE_BITS: Final = {
    Throttle.THERMAL: 0x20 | 0x40,
    Throttle.POWER: 0x04,
    Throttle.POWER_BRAKE: 0x80,
    Throttle.SETTING: 0x02,
}


def _nodes() -> tuple[OtherMetric, ...]:
    cpu = OtherMetric(
        "node_cpu_seconds_total", Signal.STOLEN, renamed=("mode", semconv.CPU_MODE, _CPU_MODES)
    )
    swap = {semconv.SYSTEM_PAGING_DIRECTION: "in"}
    return (
        cpu,
        *(
            OtherMetric(f"node_network_{way}_{what}_total", signal, device=_INTERFACE)
            for what, signal in (("drop", Signal.DROPPED), ("errs", Signal.NET_ERRORS))
            for way in ("receive", "transmit")
        ),
        OtherMetric("node_network_carrier_changes_total", Signal.CARRIER, device=_INTERFACE),
        OtherMetric("node_network_speed_bytes", Signal.LINK_RATE, device=_LINK),
        OtherMetric("node_vmstat_pswpin", Signal.SWAPPED_IN, attributes=swap),
        *(
            OtherMetric(
                f"node_infiniband_{name}",
                Signal.RDMA_EVENTS,
                attributes={semconv.TRAINING_RDMA_EVENT: event},
                device=_PORT,
            )
            for name, event in _RDMA_EVENTS.items()
        ),
    )


def _gpus() -> tuple[OtherMetric, ...]:
    def error(kind: str) -> dict[str, str]:
        return {semconv.HW_TYPE: "gpu", semconv.ERROR_TYPE: kind}

    said = {semconv.TRAINING_KERNEL_MESSAGE_KIND: semconv.TrainingKernelMessageKind.GPU_ERROR.value}
    return (
        OtherMetric(
            "DCGM_FI_DEV_SM_CLOCK",
            Signal.GPU_CLOCK,
            Of.GPU,
            {semconv.TRAINING_GPU_CLOCK: semconv.TrainingGpuClock.SM.value},
            scale=1e6,
        ),
        *(
            OtherMetric(
                name,
                Signal.GPU_THROTTLED,
                Of.GPU,
                {semconv.TRAINING_GPU_THROTTLE_REASON: reason.value},
                shape=Shape.BITS,
                bits=bits,
            )
            for name in ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
            for reason, bits in _THROTTLE_BITS.items()
        ),
        OtherMetric(
            "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", Signal.DEVICE_ERRORS, Of.GPU, error("corrected")
        ),
        OtherMetric(
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Signal.DEVICE_ERRORS, Of.GPU, error("uncorrected")
        ),
        OtherMetric(
            "DCGM_FI_DEV_XID_ERRORS",
            Signal.KERNEL_MESSAGE,
            Of.GPU,
            said,
            shape=Shape.LAST_CODE,
        ),
    )


def _processes() -> tuple[OtherMetric, ...]:
    calls = {
        Signal.SYNC_CALLS: ("device.synchronize", "stream.synchronize", "event.synchronize"),
        Signal.LAUNCH_CALLS: ("kernel.launch", "graph.launch"),
    }
    return (
        *(
            OtherMetric(f"gpu.cuda.{name}.calls", signal, Of.PROCESS)
            for signal, names in calls.items()
            for name in names
        ),
        OtherMetric("gpu.cuda.memory.free.bytes", Signal.DEVICE_FREED, Of.PROCESS),
    )


OTHERS: Final = (*_nodes(), *_gpus(), *_processes())
