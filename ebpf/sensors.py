"""The capability probe: what can be read on this machine, what cannot, why, and what to do about it.

Only what this version really reads is listed as available; the rest says so. Reading is cheap and changes nothing,
except that the scheduler program is loaded and unloaded again.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from rootwalk.ebpf.availability import (
    TIER_CAPABILITIES,
    TIER_NONE,
    Reason,
    Sensor,
    Status,
    available,
    unavailable,
)
from rootwalk.ebpf.cgroups import CgroupReader
from rootwalk.ebpf.clock_events import open_clock
from rootwalk.ebpf.readers import KINDS, Place, open_targets, probe_readers
from rootwalk.instrumentation.errors import UnavailableError

__all__ = ["SENSOR_NAMES", "probe_sensors", "with_torch_of_ranks"]

# The hooks need the process-group hooks that PyTorch has had since this version.
OLDEST_TORCH = (2, 15)
# In a rank's release ("torch 2.11.0+cu130, CUDA 13.0").
TORCH_OF_RELEASE = re.compile(r"(?:^|, )torch ([^,\s]+)")


def read_torch_version() -> str | None:
    """Return the version of PyTorch in this Python without importing it; None when it is not installed."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _version_numbers(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split("+")[0].split("."):
        digits = "".join(letter for letter in part if letter.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def probe_instrumentation(root: Path, torch_version: str | None) -> Sensor:
    """Return whether ranks in this Python can be instrumented."""
    if not os.access(root / "dev/shm", os.W_OK):
        return unavailable("instrumentation", Reason.NO_SHARED_MEMORY, TIER_NONE)
    if torch_version is None:
        return unavailable("instrumentation", Reason.NO_TORCH, TIER_NONE)
    if _version_numbers(torch_version) < OLDEST_TORCH:
        return Sensor(
            "instrumentation", Status.DEGRADED, Reason.OLD_TORCH, TIER_NONE, "hooks", torch_version
        )
    return available("instrumentation", TIER_NONE, "hooks", f"torch {torch_version}")


def with_torch_of_ranks(sensors: Sequence[Sensor], releases: Iterable[str]) -> list[Sensor]:
    """Return the sensors with the state of the hooks by the PyTorch that ranks run, not by this Python's.

    Args:
        sensors: Every sensor as it was probed.
        releases: What each rank with a ring says that it runs; the oldest PyTorch among them decides.
    """
    found = [match[1] for release in releases if (match := TORCH_OF_RELEASE.search(release))]
    if not found:
        return list(sensors)
    oldest = min(found, key=_version_numbers)
    is_old = _version_numbers(oldest) < OLDEST_TORCH
    status, reason = (Status.DEGRADED, Reason.OLD_TORCH) if is_old else (Status.AVAILABLE, None)
    detail = f"torch {oldest} of the ranks"
    return [
        replace(one, status=status, reason=reason, backend="hooks", detail=detail)
        if one.sensor == "instrumentation" and one.reason is not Reason.SWITCHED_OFF
        else one
        for one in sensors
    ]


def probe_bpf(root: Path) -> tuple[str, str | None]:
    """Load and unload the scheduler program; return what it was loaded with, and why not with libbpf.

    Raises:
        UnavailableError: With the reason why it cannot be used.
    """
    from rootwalk.ebpf.backends import choose_targets
    from rootwalk.ebpf.core_backend import CoreBackend

    targets, why = choose_targets(root)
    with contextlib.closing(targets):
        CoreBackend(targets).close()
    return targets.loader.name, why


def probe_sched(
    root: Path,
    without: Collection[str],
    load: Callable[[Path], tuple[str, str | None]] = probe_bpf,
) -> Sensor:
    """Return how the scheduler can be read: by BPF, else from /proc, else not at all."""
    why: str | None = None
    reason: Reason
    if "bpf" in without:
        reason = Reason.SWITCHED_OFF
    else:
        try:
            backend, why = load(root)
            return available("sched", TIER_CAPABILITIES, backend, why)
        except UnavailableError as error:
            reason, why = Reason[error.reason], str(error)
    if "procfs" in without or not (root / "proc/self/schedstat").exists():
        return unavailable("sched", reason, TIER_CAPABILITIES, why)
    return Sensor("sched", Status.DEGRADED, reason, TIER_NONE, "proc", why)


def probe_procfs(root: Path) -> Sensor:
    """Return whether /proc tells threads' scheduler times and processes' names."""
    if not (root / "proc/self/schedstat").exists():
        return unavailable("procfs", Reason.NO_SCHEDSTAT, TIER_NONE)
    return available("procfs", TIER_NONE, "proc")


def probe_cgroup(root: Path) -> Sensor:
    """Return whether control groups tell for how long they were throttled."""
    reader = CgroupReader(root)
    if not reader.is_mounted:
        return unavailable("cgroup", Reason.NO_CGROUP, TIER_NONE)
    backend = reader.backend
    if backend is None or not reader.has_bandwidth:
        return unavailable("cgroup", Reason.NO_CPU_LIMITS, TIER_NONE)
    return available("cgroup", TIER_NONE, backend)


def probe_stacks(
    sched: Sensor, without: Collection[str], open_one: Callable[[int, int], int] = open_clock
) -> Sensor:
    """Return whether stacks can be taken here when they are asked for; the program itself is not loaded.

    Args:
        sched: How the scheduler is read: stacks need the same.
        without: Names that the user switched off.
        open_one: Opens the clock of a CPU.
    """
    if "bpf" in without:
        return unavailable("stacks", Reason.SWITCHED_OFF, TIER_CAPABILITIES)
    if sched.backend != "core":
        reason = sched.reason or Reason.NO_LIBBPF
        return unavailable("stacks", reason, TIER_CAPABILITIES, sched.detail)
    try:
        os.close(open_one(0, 1))
    except UnavailableError as error:
        return unavailable("stacks", Reason[error.reason], TIER_CAPABILITIES, str(error))
    return available("stacks", TIER_CAPABILITIES, "core", "when they are asked for (--profile-hz)")


SENSOR_NAMES = (
    "instrumentation",
    "sched",
    "procfs",
    "cgroup",
    "stacks",
    *(kind.sensor for kind in KINDS),
)


def _probe_kinds(root: Path, without: Collection[str]) -> list[Sensor]:
    targets = open_targets(without)
    try:
        return probe_readers(Place(root, targets), without)
    finally:
        if targets is not None:
            targets.close()


def probe_sensors(without: Collection[str] = (), root: Path = Path("/")) -> list[Sensor]:
    """Return every sensor and the state that it is in.

    Args:
        without: Names that the user switched off; `bpf` leaves the scheduler to /proc.
        root: Where /proc, /sys and /dev are.
    """
    sched = probe_sched(root, without)
    sensors = [
        probe_instrumentation(root, read_torch_version()),
        sched,
        probe_procfs(root),
        probe_cgroup(root),
        probe_stacks(sched, without),
        *_probe_kinds(root, without),
    ]
    return [
        unavailable(sensor.sensor, Reason.SWITCHED_OFF, sensor.tier)
        if sensor.sensor in without
        else sensor
        for sensor in sensors
    ]
