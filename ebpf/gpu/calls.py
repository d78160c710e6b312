"""What is asked of a GPU, how often, and which value of which metric each answer is. Data, and small functions of it.

    fast      every look, 1 s     what moves within a step: clocks, power, utilisation
    medium    5 s                 sums, temperatures, memory
    slow      60 s                limits and settings, which somebody has to change

Units are converted here: NVML's MHz, mW, mJ, ns, percent and KiB go no further. Source: NVML API Reference; fields by
their numbers in nvml.h. Its numbers above 250 differ between branches of the driver and are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from rootwalk.ebpf.gpu.series import series
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingGpuClock as Clock
from rootwalk.instrumentation.semconv import TrainingGpuThrottleReason as Throttle

__all__ = [
    "BITS",
    "COUNTED_FIELDS",
    "FAST",
    "LINK_COUNT_FIELD",
    "LINK_METRICS",
    "MEDIUM",
    "SLOW",
    "VIOLATIONS",
    "Call",
    "Fields",
    "link_fields",
    "pcie_rate",
    "throttle_state",
    "throttled",
]

Values = Iterable[tuple[str, float]]
MHZ, MILLI, NANO, PERCENT, KIB = 1e6, 1e-3, 1e-9, 0.01, 1024.0
SM_CLOCK, MEMORY_CLOCK = 1, 2
CORRECTED, UNCORRECTED = "corrected", "uncorrected"
# What a lane carries in one direction, by generation, bytes/s: transfers a second, less the line code (8b/10b, then
# 128b/130b, from generation 6 on flits of 256 bytes of which 242 count).
_LANE_BYTES_PER_S: Final = {
    1: 250e6,
    2: 500e6,
    3: 8e9 / 8 * 128 / 130,
    4: 16e9 / 8 * 128 / 130,
    5: 32e9 / 8 * 128 / 130,
    6: 64e9 / 8 * 242 / 256,
}


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One question to a GPU; there is one of each.

    Attributes:
        metric: The metric that is missing when it is refused.
        function: Of the binding; the GPU is its first argument.
        arguments: The others.
        tell: Returns the values that the answer holds.
    """

    metric: str
    function: str
    arguments: tuple[int, ...]
    tell: Callable[[Any], Values]


def pcie_rate(generation: int, width: int) -> float | None:
    """Return what a PCI Express link carries in one direction, bytes/s; None for a generation that nobody knows."""
    lane = _LANE_BYTES_PER_S.get(generation)
    return None if lane is None else lane * width


def _number(
    metric: str, function: str, *arguments: int, unit: float = 1.0, **attributes: str
) -> Call:
    name = series(metric, **attributes)
    return Call(metric, function, arguments, lambda answer: ((name, answer * unit),))


def _memory(answer: Any) -> Values:
    yield semconv.METRIC_HW_GPU_MEMORY_USAGE, answer.used
    yield semconv.METRIC_HW_GPU_MEMORY_LIMIT, answer.total


def _utilization(answer: Any) -> Values:
    yield series(semconv.METRIC_HW_GPU_UTILIZATION, hw__gpu__task="general"), answer.gpu * PERCENT
    yield semconv.METRIC_HW_GPU_MEMORY_UTILIZATION, answer.memory * PERCENT


def _first(metric: str, function: str, unit: float = 1.0, **attributes: str) -> Call:
    name = series(metric, **attributes)
    return Call(metric, function, (), lambda answer: ((name, answer[0] * unit),))


def _rows(answer: Any) -> Values:
    corrected, uncorrected, pending, failed = answer
    rows = semconv.METRIC_TRAINING_GPU_REMAPPED_ROWS
    yield series(rows, error__type=CORRECTED), corrected
    yield series(rows, error__type=UNCORRECTED), uncorrected
    state = semconv.METRIC_TRAINING_GPU_REMAP_STATE
    yield series(state, training__gpu__remap__state="pending"), pending
    yield series(state, training__gpu__remap__state="failed"), failed


def _clock(metric: str, function: str, clock: Clock, number: int) -> Call:
    return _number(metric, function, number, unit=MHZ, training__gpu__clock=clock.value)


def _temperature(metric: str, function: str, *arguments: int, **more: str) -> Call:
    name = series(metric, hw__type="gpu", hw__sensor_location="core", **more)
    return Call(metric, function, arguments, lambda answer: ((name, answer),))


def _setting(name: str, function: str, *, is_pair: bool) -> Call:
    metric = semconv.METRIC_TRAINING_GPU_SETTING
    if is_pair:
        return _first(metric, function, training__gpu__setting=name)
    return _number(metric, function, training__gpu__setting=name)


# Of the reasons why the clock is held down (nvmlClocksEventReason), those that somebody can act on. 0x8 says only that
# the hardware does it, and comes with the bit that says why.
BITS: Final = (
    (Throttle.SETTING, 0x2),
    (Throttle.POWER, 0x4),
    (Throttle.SYNC_BOOST, 0x10),
    (Throttle.THERMAL, 0x20 | 0x40),
    (Throttle.POWER_BRAKE, 0x80),
)
# Times that the driver itself adds up (nvmlPerfPolicyType): short spells are in them, which bits that are read once a
# second miss. There are none for settings and for the power brake.
VIOLATIONS: Final = {Throttle.POWER: 0, Throttle.THERMAL: 1, Throttle.SYNC_BOOST: 2}

FAST: Final = (
    _clock(semconv.METRIC_TRAINING_GPU_FREQUENCY, "nvmlDeviceGetClockInfo", Clock.SM, SM_CLOCK),
    _clock(
        semconv.METRIC_TRAINING_GPU_FREQUENCY, "nvmlDeviceGetClockInfo", Clock.MEMORY, MEMORY_CLOCK
    ),
    Call(semconv.METRIC_HW_GPU_UTILIZATION, "nvmlDeviceGetUtilizationRates", (), _utilization),
    _number(semconv.METRIC_HW_POWER, "nvmlDeviceGetPowerUsage", unit=MILLI, hw__type="gpu"),
)
MEDIUM: Final = (
    Call(semconv.METRIC_HW_GPU_MEMORY_USAGE, "nvmlDeviceGetMemoryInfo", (), _memory),
    _temperature(semconv.METRIC_HW_TEMPERATURE, "nvmlDeviceGetTemperature", 0),
    _number(semconv.METRIC_TRAINING_GPU_POWER_LIMIT, "nvmlDeviceGetEnforcedPowerLimit", unit=MILLI),
    *(
        # Since the driver was loaded (volatile), of all memories together.
        _number(
            semconv.METRIC_HW_ERRORS,
            "nvmlDeviceGetTotalEccErrors",
            number,
            0,
            hw__type="gpu",
            error__type=kind,
        )
        for number, kind in enumerate((CORRECTED, UNCORRECTED))
    ),
    Call(semconv.METRIC_TRAINING_GPU_REMAPPED_ROWS, "nvmlDeviceGetRemappedRows", (), _rows),
    _number(semconv.METRIC_TRAINING_GPU_PCIE_REPLAYS, "nvmlDeviceGetPcieReplayCounter"),
    *(
        _first(semconv.METRIC_HW_GPU_UTILIZATION, function, PERCENT, hw__gpu__task=task)
        for task, function in (
            ("encoder", "nvmlDeviceGetEncoderUtilization"),
            ("decoder", "nvmlDeviceGetDecoderUtilization"),
        )
    ),
)
# Where an error of memory was (nvmlMemoryLocation).
_LOCATIONS: Final = {0: "l1", 1: "l2", 2: "dram", 3: "register", 5: "shared", 6: "cbu", 7: "sram"}
SLOW: Final = (
    # 4 ms of CPU time a GPU on an H200; power is told each second.
    _number(
        semconv.METRIC_HW_ENERGY, "nvmlDeviceGetTotalEnergyConsumption", unit=MILLI, hw__type="gpu"
    ),
    _clock(
        semconv.METRIC_TRAINING_GPU_FREQUENCY_LIMIT, "nvmlDeviceGetMaxClockInfo", Clock.SM, SM_CLOCK
    ),
    _clock(
        semconv.METRIC_TRAINING_GPU_FREQUENCY_LIMIT,
        "nvmlDeviceGetMaxClockInfo",
        Clock.MEMORY,
        MEMORY_CLOCK,
    ),
    *(
        _temperature(
            semconv.METRIC_HW_TEMPERATURE_LIMIT,
            "nvmlDeviceGetTemperatureThreshold",
            number,
            hw__limit_type=limit,
        )
        for number, limit in ((0, "high.critical"), (1, "high.degraded"))
    ),
    _setting("mig", "nvmlDeviceGetMigMode", is_pair=True),
    _setting("ecc", "nvmlDeviceGetEccMode", is_pair=True),
    _setting("persistence", "nvmlDeviceGetPersistenceMode", is_pair=False),
    *(
        _number(
            semconv.METRIC_TRAINING_GPU_MEMORY_ERRORS,
            "nvmlDeviceGetMemoryErrorCounter",
            number,
            0,
            location,
            error__type=kind,
            training__gpu__memory=name,
        )
        for number, kind in enumerate((CORRECTED, UNCORRECTED))
        for location, name in _LOCATIONS.items()
    ),
)


@dataclass(frozen=True, slots=True)
class Fields:
    """Numbered fields that are asked for at once.

    Attributes:
        asked: Number and scope of each: a link, all links, or 0.
        told: The value that each is or is a part of, and its unit.
    """

    asked: tuple[tuple[int, int], ...]
    told: tuple[tuple[str, float], ...]


def _fields(*rows: tuple[int, int, str, float]) -> Fields:
    return Fields(tuple(row[:2] for row in rows), tuple(row[2:] for row in rows))


LINK_COUNT_FIELD: Final = 91
# Of the whole GPU.
COUNTED_FIELDS: Final = _fields(
    (
        82,
        0,
        series(semconv.METRIC_HW_TEMPERATURE, hw__type="gpu", hw__sensor_location="memory"),
        1.0,
    ),
    (197, 0, series(semconv.METRIC_HW_GPU_IO, network__io__direction="transmit"), 1.0),
    (198, 0, series(semconv.METRIC_HW_GPU_IO, network__io__direction="receive"), 1.0),
    (230, 0, semconv.METRIC_TRAINING_GPU_RECOVERY_ACTION, 1.0),
)
_ALL_LINKS: Final = 0xFFFFFFFF
_LINK_TOTALS: Final = tuple(
    (
        number,
        _ALL_LINKS,
        series(semconv.METRIC_TRAINING_GPU_NVLINK_IO, network__io__direction=direction),
        KIB,
    )
    for number, direction in ((138, "transmit"), (139, "receive"))
)
_LINK_ERRORS: Final = tuple(
    (number, series(semconv.METRIC_TRAINING_GPU_NVLINK_ERRORS, training__gpu__nvlink__error=kind))
    for number, kind in ((161, "replay"), (162, "recovery"), (163, "crc"))
)


@cache
def link_fields(count: int) -> Fields:
    """Return the fields of so many NVLinks: those of all together, and those of each, which are added up."""
    of_each = ((number, link, name, 1.0) for number, name in _LINK_ERRORS for link in range(count))
    return _fields(*_LINK_TOTALS, *of_each)


LINK_METRICS: Final = (
    semconv.METRIC_TRAINING_GPU_NVLINK_LINKS,
    semconv.METRIC_TRAINING_GPU_NVLINK_IO,
    semconv.METRIC_TRAINING_GPU_NVLINK_ERRORS,
)


@cache
def throttled(reason: Throttle) -> str:
    """Return the name of the time for which the clock was held down for a reason."""
    metric = semconv.METRIC_TRAINING_GPU_THROTTLED_TIME
    return series(metric, training__gpu__throttle__reason=reason.value)


@cache
def throttle_state(reason: Throttle) -> str:
    """Return the name of whether it is now."""
    metric = semconv.METRIC_TRAINING_GPU_THROTTLE_STATE
    return series(metric, training__gpu__throttle__reason=reason.value)
