"""The stand-in of NVIDIA's management library: compiled, given a scenario, and put where nvidia-ml-py looks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from support.built_programs import SETUP, build_once

SOURCE = Path(__file__).resolve().parents[1] / "nvml_standin"
LIBRARY = "libnvidia-ml.so.1"
GIB = 1 << 30
WATT = 1_000
# What a GPU of the scenario says when nothing is wrong; keys as `nvml.c` has them. A share of H100's own limits.
HEALTHY: Mapping[str, float] = {
    "clock.1": 1980,
    "clock.2": 2619,
    "max_clock.1": 1980,
    "max_clock.2": 2619,
    "utilization": 97,
    "memory_utilization": 40,
    "encoder": 0,
    "decoder": 0,
    "power_mw": 500 * WATT,
    "power_limit_mw": 700 * WATT,
    "temperature.0": 55,
    "threshold.0": 92,
    "threshold.1": 87,
    "field.82.0": 66,
    "memory_total": 80 * GIB,
    "memory_used": 20 * GIB,
    "reasons": 0,
    "violation.0": 0,
    "violation.1": 0,
    "violation.2": 0,
    "ecc_volatile.0": 0,
    "ecc_volatile.1": 0,
    "remapped.0": 0,
    "remapped.1": 0,
    "remapped.2": 0,
    "remapped.3": 0,
    "pcie_generation": 5,
    "pcie_width": 16,
    "pcie_max_generation": 5,
    "pcie_max_width": 16,
    "pcie_replays": 0,
    "mig": 0,
    "ecc": 1,
    "persistence": 1,
    "virtualization": 0,
    "field.91.0": 18,
    "field.197.0": 0,
    "field.198.0": 0,
    "field.230.0": 0,
    "field.138.4294967295": 0,
    "field.139.4294967295": 0,
    **{f"nvlink_state.{link}": 1 for link in range(18)},
    **{f"field.{field}.{link}": 0 for field in (161, 162, 163) for link in range(18)},
    **{
        f"ecc_{kind}.{where}": 0
        for kind in ("corrected", "uncorrected")
        for where in (0, 1, 2, 3, 5, 6, 7)
    },
}
HEALTHY_RATES: Mapping[str, float] = {"energy_mj": 500 * WATT}


def uuid_of(index: int) -> str:
    """Return the UUID of the scenario's GPU of that number."""
    return f"GPU-57a4d100-0000-4000-8000-{index:012d}"


def bus_of(index: int) -> str:
    """Return its PCI address, as NVML prints it."""
    return f"00000000:{0x18 + index:02X}:00.0"


def has_compiler() -> bool:
    """Return whether the library can be compiled here."""
    return compiler() is not None


def compiler() -> str | None:
    """Return a C compiler of this machine."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def build_standin() -> Path:
    """Return the folder that holds the compiled library."""

    def build(folder: Path) -> None:
        command = [str(compiler()), "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(
            [*command, f"-Wl,-soname,{LIBRARY}", "-o", LIBRARY, "nvml.c"], cwd=folder, check=True
        )

    return build_once(SOURCE, SETUP / "nvml_standin", build)


class Scenario:
    """What GPUs do over time, as the stand-in plays it.

    Args:
        path: The file.
        gpus: How many healthy ones there are at the start.
        driver: The driver's version.
    """

    def __init__(self, path: Path, gpus: int = 1, driver: str = "580.95.05") -> None:
        self.path = path
        self.start_ns = time.monotonic_ns()
        self._lines: list[tuple[float, str]] = []
        self.add(-1, "text", "driver", driver)
        self.add(-1, "set", "count", gpus)
        for index in range(gpus):
            self.healthy(index, gpus)

    def healthy(self, index: int, gpus: int) -> None:
        """Add a GPU to which nothing happens."""
        self.add(index, "text", "uuid", uuid_of(index))
        self.add(index, "text", "name", "Stand-in")
        self.add(index, "text", "bus", bus_of(index))
        for key, value in HEALTHY.items():
            self.add(index, "set", key, value)
        for key, rate in HEALTHY_RATES.items():
            self.add(index, "rate", key, rate)
        for other in range(gpus):
            self.add(index, "set", f"peer.{other}", 0)

    def add(
        self, index: int, what: str, key: str | int, value: float | str = 0, at_s: float = 0.0
    ) -> Scenario:
        """Add a line: see `nvml.c`."""
        self._lines.append((at_s, f"{at_s} {index} {what} {key} {value}"))
        return self

    def drop(self, keys: Iterable[str]) -> Scenario:
        """Take values away: the GPU does not have them."""
        gone = {f" set {key} " for key in keys}
        self._lines = [one for one in self._lines if not any(word in one[1] for word in gone)]
        return self

    def write(self) -> dict[str, str]:
        """Write it; return the environment in which the stand-in is found and plays it from now on."""
        self.start_ns = time.monotonic_ns()
        self.change()
        return self.environment()

    def environment(self) -> dict[str, str]:
        """Return the environment in which the stand-in is found and plays it."""
        folders = [str(build_standin()), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "LD_LIBRARY_PATH": ":".join(folder for folder in folders if folder),
            "ROOTWALK_NVML_SCENARIO": str(self.path),
        }

    def change(self) -> None:
        """Write what was added since it was written, while it is played; times go on from the same start."""
        lines = [
            f"start {self.start_ns}",
            *(text for _, text in sorted(self._lines, key=lambda one: one[0])),
        ]
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_text("\n".join(lines) + "\n", encoding="ascii")
        new.replace(self.path)

    def now_s(self) -> float:
        """Return the time now as lines have it, s."""
        return (time.monotonic_ns() - self.start_ns) / 1e9
