"""Which metrics say what, as data: what measures the work, what may hold it up, and which reason that speaks for.

    role        says                                             may be accused
    WORK        how much the job gets done, there                no: a symptom
    CONDITION   something there is not as it is elsewhere        yes, with its reason
    CONTEXT     the same, but by itself it slows nobody          no: evidence beside another

Names are those of node-exporter and dcgm-exporter as a Collector's Prometheus receiver passes them on, of
OpenTelemetry's conventions, and our own readers'. Knows no store and computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rootwalk.graph.reasons import Reason
from rootwalk.instrumentation import semconv

__all__ = ["RULES", "Combine", "MetricRule", "Role", "Source"]

_MHZ: Final = 1e6
_PERCENT: Final = 0.01


class Role(StrEnum):
    """What a metric is for."""

    WORK = "work"
    CONDITION = "condition"
    CONTEXT = "context"


class Combine(StrEnum):
    """How the series of one place become one number; the values are functions of SQL."""

    SUM = "sum"
    MEAN = "avg"
    LARGEST = "max"


@dataclass(frozen=True, slots=True)
class Source:
    """One metric of one producer.

    `where` are attributes and the values of them that count, `but` those that do not. `part` names what is counted
    inside the place (counters of one part add up), `device` the place itself where it is not the host: the first
    attribute that is there. A counter is read as its growth a second. `mask` turns a number of bits into whether one
    of these is set, `among` into whether it is one of these. `column` is where the number is: a histogram's `count`,
    else the value.
    """

    metric: str
    is_counter: bool = False
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    but: tuple[tuple[str, tuple[str, ...]], ...] = ()
    device: tuple[str, ...] = ()
    part: str | None = None
    scale: float = 1.0
    mask: int | None = None
    among: tuple[int, ...] = ()
    column: str = "value"


@dataclass(frozen=True, slots=True)
class MetricRule:
    """What one quantity says.

    `component` is the kind of node that it is about. `scatter`, in `unit`, is the least that counts as usual spread:
    below six times as much nothing stands out. `sign` is +1 where more is bad, -1 where less is. `least` is what the
    value must reach to be a cause at all. `needs_load`: means nothing on a device that does not work; `needs_past`:
    nor without having moved, as it may be old. Of several sources the first that a store has is read, or where it
    `adds` all of them. `order`: of several reasons of one component, the lowest is given.
    """

    id: str
    role: Role
    component: str
    words: str
    unit: str
    sign: int
    scatter: float
    sources: tuple[Source, ...]
    combine: Combine = Combine.MEAN
    reason: Reason | None = None
    layer: str | None = None
    owner: str = "unknown"
    action_code: str = "LOOK_CLOSER"
    action: str = "compare that host and device with its peers; `rootwalk run` would see why"
    least: float | None = None
    needs_load: bool = False
    needs_past: bool = False
    adds: bool = False
    order: int = 5


_GPU: Final = ("UUID", "gpu", "device")
_HW: Final = (semconv.HW_ID,)
_NOT_CARDS: Final = (("device", ("lo", "docker0", "cni0")),)
_REASONS: Final = (
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
)


def _bits(mask: int, *own: str) -> tuple[Source, ...]:
    """Return where a GPU says that its clock is held down for a reason."""
    told = tuple(Source(name, device=_GPU, mask=mask) for name in _REASONS)
    where = ((semconv.TRAINING_GPU_THROTTLE_REASON, own),)
    ours = Source(semconv.METRIC_TRAINING_GPU_THROTTLED_TIME, True, where, device=_HW)
    return (*told, ours)


def _cpu(*modes: str) -> tuple[Source, ...]:
    """Return the time of a host's CPUs in some modes, as a part of their time."""
    return (Source("node_cpu_seconds_total", True, (("mode", modes),), part="cpu"),)


def _pressure(node: str, resource: str) -> tuple[Source, ...]:
    where = (
        (semconv.TRAINING_PRESSURE_RESOURCE, (resource,)),
        (semconv.TRAINING_PRESSURE_EXTENT, ("some",)),
    )
    return (
        Source(f"node_pressure_{node}_seconds_total", True),
        Source(semconv.METRIC_TRAINING_PRESSURE_TIME, True, where),
    )


_WORK: Final[tuple[MetricRule, ...]] = (
    MetricRule(
        *("steps", Role.WORK, "host", "steps", "{step}/s", -1, 0.0),
        (Source(semconv.METRIC_TRAINING_STEP_DURATION, True, column="count"),),
    ),
    MetricRule(
        *("gpu_active", Role.WORK, "gpu", "compute units busy", "1"),
        *(-1, 0.02),
        (
            Source("DCGM_FI_PROF_SM_ACTIVE", device=_GPU),
            Source("DCGM_FI_PROF_GR_ENGINE_ACTIVE", device=_GPU),
        ),
    ),
    MetricRule(
        *("gpu_busy", Role.WORK, "gpu", "utilisation", "1", -1, 0.02),
        (
            Source("DCGM_FI_DEV_GPU_UTIL", device=_GPU, scale=_PERCENT),
            Source("hw.gpu.utilization", device=_HW),
        ),
    ),
    # A device that waits inside a kernel is as busy as one that computes, and draws less.
    MetricRule(
        *("gpu_power", Role.WORK, "gpu", "power", "W", -1, 10.0),
        (Source("DCGM_FI_DEV_POWER_USAGE", device=_GPU),),
    ),
    MetricRule(
        *("network", Role.WORK, "host", "bytes sent", "By/s", -1, 1e5),
        (
            Source("node_network_transmit_bytes_total", True, but=_NOT_CARDS, part="device"),
            Source("node_infiniband_port_data_transmitted_bytes_total", True, part="device"),
            Source(
                semconv.METRIC_SYSTEM_NETWORK_IO,
                True,
                ((semconv.NETWORK_IO_DIRECTION, ("transmit",)),),
                ((semconv.NETWORK_INTERFACE_NAME, ("lo",)),),
                part=semconv.NETWORK_INTERFACE_NAME,
            ),
        ),
        Combine.SUM,
    ),
)

_COOL: Final = (
    "COOL_DEVICE",
    "look at cooling and air flow of that GPU; drain the host if it recurs",
)
_DISK: Final = ("CHECK_STORAGE", "find what reads or writes that disk; move it, or the job's files")
_LOSS: Final = ("CHECK_LINK", "look at cable, card and switch port of that host")

_GPU_RULES: Final[tuple[MetricRule, ...]] = (
    MetricRule(
        *("thermal", Role.CONDITION, "gpu", "clocked down for its temperature", "1", 1, 0.02),
        *(_bits(0x20 | 0x40, "thermal"), Combine.LARGEST, Reason.GPU_THERMAL, "device", "node"),
        *_COOL,
        order=1,
    ),
    MetricRule(
        *("power", Role.CONDITION, "gpu", "clocked down for power", "1", 1, 0.02),
        *(_bits(0x04 | 0x80, "power", "power_brake"), Combine.LARGEST, Reason.GPU_POWER),
        *("device", "node", "CHECK_POWER"),
        "compare the power limit with that of other hosts; look at power supply and rack",
        order=2,
    ),
    MetricRule(
        *("pinned", Role.CONDITION, "gpu", "clocked down by a setting", "1", 1, 0.02),
        *(_bits(0x02, "setting"), Combine.LARGEST, Reason.GPU_CLOCK_PIN, "device", "node"),
        *("RESET_CLOCKS", "reset the clocks of that GPU (nvidia-smi -rgc -rac)"),
        needs_load=True,
        order=3,
    ),
    MetricRule(
        *("gpu_clock", Role.CONDITION, "gpu", "SM clock", "Hz", -1, 20e6),
        (
            Source("DCGM_FI_DEV_SM_CLOCK", device=_GPU, scale=_MHZ),
            Source(
                semconv.METRIC_TRAINING_GPU_FREQUENCY,
                where=((semconv.TRAINING_GPU_CLOCK, ("sm",)),),
                device=_HW,
            ),
        ),
        *(Combine.MEAN, Reason.UNKNOWN_GPU, "device"),
        needs_load=True,
    ),
    MetricRule(
        *("ecc", Role.CONDITION, "gpu", "uncorrected memory errors", "{error}/s", 1, 1e-4),
        (Source("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", True, device=_GPU),),
        *(Combine.SUM, Reason.GPU_ECC, "device", "node", "RESET_DEVICE"),
        "reset that GPU when the job is off it; return it if errors go on",
        order=0,
    ),
    MetricRule(
        *("xid_ecc", Role.CONDITION, "gpu", "last Xid is one of memory errors", "1", 1, 0.05),
        (Source("DCGM_FI_DEV_XID_ERRORS", device=_GPU, among=(48, 63, 64, 92, 94, 95)),),
        *(Combine.LARGEST, Reason.GPU_ECC, "device", "node", "RESET_DEVICE"),
        "reset that GPU when the job is off it; return it if errors go on",
        needs_past=True,
        order=0,
    ),
    MetricRule(
        *("nvlink", Role.CONDITION, "gpu", "NVLink errors", "{error}/s", 1, 0.1),
        (
            Source("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", True, device=_GPU),
            Source("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", True, device=_GPU),
        ),
        *(Combine.SUM, Reason.NVLINK, "device", "node"),
        *("RESEAT_DEVICE", "look at the NVLinks of that GPU (nvidia-smi nvlink -e); reseat"),
        adds=True,
    ),
    MetricRule(
        *("gpu_heat", Role.CONTEXT, "gpu", "temperature", "Cel", 1, 1.0),
        (Source("DCGM_FI_DEV_GPU_TEMP", device=_GPU),),
    ),
)

_HOST_RULES: Final[tuple[MetricRule, ...]] = (
    MetricRule(
        *("steal", Role.CONDITION, "cpu", "CPU time taken by the hypervisor", "1", 1, 0.01),
        *(_cpu("steal"), Combine.MEAN, Reason.CPU_STEAL, "operating_system", "node"),
        *("MOVE_HOST", "move the job off that machine, or its neighbours"),
        order=1,
    ),
    MetricRule(
        *("interrupts", Role.CONDITION, "cpu", "CPU time in interrupts", "1", 1, 0.01),
        *(_cpu("softirq", "irq"), Combine.MEAN, Reason.IRQ_SOFTIRQ, "operating_system", "node"),
        *("SPREAD_INTERRUPTS", "see which device interrupts (/proc/interrupts); spread it"),
        order=2,
    ),
    MetricRule(
        *("cpu_clock", Role.CONDITION, "cpu", "CPU clock", "Hz", -1, 50e6),
        (Source("node_cpu_scaling_frequency_hertz", part="cpu"),),
        *(Combine.MEAN, Reason.CPU_FREQ, "operating_system", "node"),
        *("CHECK_CLOCKS", "look at the governor, power limit and cooling of that host"),
        order=3,
    ),
    MetricRule(
        *("cpu_queue", Role.CONDITION, "cpu", "tasks waited for a CPU", "1", 1, 0.02),
        *(_pressure("cpu_waiting", "cpu"), Combine.LARGEST, Reason.UNKNOWN_HOST),
        "operating_system",
    ),
    MetricRule(
        *("cpu_busy", Role.CONTEXT, "cpu", "CPU time", "1", 1, 0.02),
        _cpu("user", "system", "nice"),
    ),
    MetricRule(
        *("swap", Role.CONDITION, "memory", "pages read from swap", "{page}/s", 1, 10.0),
        (Source("node_vmstat_pswpin", True),),
        *(Combine.SUM, Reason.SWAP, "operating_system", "node"),
        *("FREE_MEMORY", "find what fills that host's memory; switch swap off for the job"),
        order=1,
    ),
    MetricRule(
        *("reclaim", Role.CONDITION, "memory", "tasks waited for memory", "1", 1, 0.01),
        *(_pressure("memory_waiting", "memory"), Combine.LARGEST, Reason.MEM_RECLAIM),
        *("operating_system", "node", "FREE_MEMORY", "find what fills that host's memory"),
        order=2,
    ),
    MetricRule(
        *("faults", Role.CONTEXT, "memory", "major page faults", "{fault}/s", 1, 10.0),
        (Source("node_vmstat_pgmajfault", True),),
        Combine.SUM,
    ),
    # More than one second a second: several requests at a time.
    MetricRule(
        *("disk_reads", Role.CONDITION, "disk", "reads in progress", "{request}", 1, 0.05),
        (Source("node_disk_read_time_seconds_total", True, part="device"),),
        *(Combine.LARGEST, Reason.DATALOADER_IO, "storage", "storage", *_DISK),
        least=0.5,
        order=1,
    ),
    MetricRule(
        *("disk_writes", Role.CONDITION, "disk", "writes in progress", "{request}", 1, 0.05),
        (Source("node_disk_write_time_seconds_total", True, part="device"),),
        *(Combine.LARGEST, Reason.CKPT_IO, "storage", "storage", *_DISK),
        least=0.5,
        order=1,
    ),
    MetricRule(
        *("disk_busy", Role.CONDITION, "disk", "busy", "1", 1),
        0.05,
        (
            Source("node_disk_io_time_seconds_total", True, part="device"),
            Source(semconv.METRIC_SYSTEM_DISK_IO_TIME, True, part=semconv.SYSTEM_DEVICE),
        ),
        *(Combine.LARGEST, Reason.UNKNOWN_HOST, "storage", "unknown", *_DISK),
        least=0.7,
    ),
    MetricRule(
        *("disk_queue", Role.CONTEXT, "disk", "tasks waited for storage", "1", 1, 0.02),
        *(_pressure("io_waiting", "io"), Combine.LARGEST),
    ),
    MetricRule(
        *("drops", Role.CONDITION, "nic", "packets dropped or broken", "{packet}/s", 1, 1.0),
        (
            Source("node_network_receive_drop_total", True, but=_NOT_CARDS, part="device"),
            Source("node_network_transmit_drop_total", True, but=_NOT_CARDS, part="device"),
            Source("node_network_receive_errs_total", True, but=_NOT_CARDS, part="device"),
            Source(semconv.METRIC_SYSTEM_NETWORK_PACKET_DROPPED, True, part=semconv.SYSTEM_DEVICE),
        ),
        *(Combine.LARGEST, Reason.NET_LOSS, "network", "fabric", *_LOSS),
        adds=True,
    ),
    MetricRule(
        *("flaps", Role.CONDITION, "nic", "changes of the link", "{change}/s", 1, 0.005),
        (Source("node_network_carrier_changes_total", True, but=_NOT_CARDS, part="device"),),
        *(Combine.LARGEST, Reason.NET_FLAP, "network", "fabric", *_LOSS),
        order=1,
    ),
    MetricRule(
        *("link_rate", Role.CONDITION, "nic", "rate of its fastest link", "By/s", -1, 1e6),
        (Source("node_network_speed_bytes", but=_NOT_CARDS, part="device"),),
        *(Combine.LARGEST, Reason.NIC_RATE, "network", "node", *_LOSS),
        order=2,
    ),
)

RULES: Final[dict[str, MetricRule]] = {
    rule.id: rule for rule in (*_WORK, *_GPU_RULES, *_HOST_RULES)
}
