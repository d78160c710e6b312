"""What `nvidia-smi` says of GPUs, and what our reader has to say then."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from rootwalk.ebpf.gpu.reader import pci_address
from rootwalk.ebpf.reader import Measurement
from rootwalk.instrumentation import semconv

__all__ = ["FIELDS", "ask", "find_differences"]

MEGA, MEBI = 1e6, 1024.0**2


@dataclass(frozen=True, slots=True)
class Field:
    """A field of `nvidia-smi --help-query-gpu`, and where we have it.

    Attributes:
        metric: That has it.
        attributes: Of its point, beside the GPU's UUID.
        unit: What one of it is in the metric's unit.
        off: It may be so far off, in nvidia-smi's unit: what moves is not asked for at the same moment.
    """

    metric: str
    attributes: Mapping[str, str]
    unit: float = 1.0
    off: float = 0.0


_GPU = {semconv.HW_TYPE: "gpu"}
_SM, _MEMORY = ({semconv.TRAINING_GPU_CLOCK: clock.value} for clock in semconv.TrainingGpuClock)
FIELDS: Mapping[str, Field] = {
    "memory.total": Field(semconv.METRIC_HW_GPU_MEMORY_LIMIT, {}, MEBI, 1.0),
    "power.limit": Field(semconv.METRIC_TRAINING_GPU_POWER_LIMIT, {}, off=0.01),
    "clocks.max.sm": Field(semconv.METRIC_TRAINING_GPU_FREQUENCY_LIMIT, _SM, MEGA),
    "clocks.max.memory": Field(semconv.METRIC_TRAINING_GPU_FREQUENCY_LIMIT, _MEMORY, MEGA),
    "clocks.current.memory": Field(semconv.METRIC_TRAINING_GPU_FREQUENCY, _MEMORY, MEGA, 2000.0),
    "pcie.link.width.current": Field(semconv.METRIC_TRAINING_GPU_PCIE_WIDTH, {}),
    "temperature.gpu": Field(
        semconv.METRIC_HW_TEMPERATURE, {**_GPU, semconv.HW_SENSOR_LOCATION: "core"}, off=5.0
    ),
    "power.draw": Field(semconv.METRIC_HW_POWER, _GPU, off=100.0),
}


def ask(command: str = "nvidia-smi") -> list[dict[str, str]]:
    """Return what it says of each GPU, by field."""
    names = ["uuid", "pci.bus_id", *FIELDS]
    options = [f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    done = subprocess.run([command, *options], capture_output=True, text=True, check=True)
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def find_differences(told: list[dict[str, str]], found: list[Measurement]) -> list[str]:
    """Return where our measurements say another thing than `nvidia-smi`, or nothing where it says something."""
    differences = []
    for gpu in told:
        own = [one for one in found if one.attributes.get(semconv.HW_ID) == gpu["uuid"]]
        if not own:
            differences.append(f"{gpu['uuid']}: not found")
            continue
        address = pci_address(gpu["pci.bus_id"])
        addresses = {one.attributes.get(semconv.TRAINING_GPU_PCI_ADDRESS) for one in own} - {None}
        if addresses != {address}:
            differences.append(f"{gpu['uuid']}: pci.bus_id {address}, ours {addresses}")
        for name, field in FIELDS.items():
            if gpu[name].startswith("["):  # [N/A], [Not Supported]
                continue
            wanted = field.attributes.items()
            values = [
                one.value / field.unit
                for one in own
                if one.metric == field.metric and wanted <= one.attributes.items()
            ]
            if not values or abs(values[0] - float(gpu[name])) > field.off:
                differences.append(f"{gpu['uuid']}: {name} {gpu[name]}, ours {values}")
    return differences
