"""The capability probe: what can be read on this machine, what cannot, why, and what to do about it.

Only what this version really reads is listed as available; the rest says so. Reading is cheap and changes nothing,
except that the scheduler program is loaded and unloaded again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from rootwalk.ebpf.cgroups import CgroupReader
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.semconv import RootwalkSensorStatus as Status

__all__ = ["SENSOR_NAMES", "Reason", "Sensor", "Status", "probe_sensors"]

# The hooks need the process-group hooks that PyTorch has had since this version.
OLDEST_TORCH = (2, 15)
TIER_NONE, TIER_CAPABILITIES, TIER_ROOT = 0, 1, 2
INITIAL_PID_NAMESPACE = 0xEFFFFFFC


class Reason(StrEnum):
    """Why a sensor is not fully available; `sentence` and `hint` say it for people."""

    sentence: str
    hint: str

    def __new__(cls, value: str, sentence: str, hint: str) -> Reason:
        """Make a member that carries its texts."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.sentence = sentence
        member.hint = hint
        return member

    NO_LIBBPF = (
        "NO_LIBBPF",
        "libbpf.so.1 cannot be loaded",
        "install libbpf 1.0 or newer (Debian, Ubuntu: apt-get install libbpf1)",
    )
    NO_BTF = (
        "NO_BTF",
        "the kernel does not publish its types (/sys/kernel/btf/vmlinux)",
        "use a kernel built with CONFIG_DEBUG_INFO_BTF",
    )
    NO_PRIVILEGE = (
        "NO_PRIVILEGE",
        "the kernel refuses BPF to this user",
        "run as root, or grant CAP_BPF and CAP_PERFMON",
    )
    NO_OBJECT = (
        "NO_OBJECT",
        "the compiled BPF object is not installed",
        "run `make bpf`, or install the wheel instead of the bare source",
    )
    LOAD_REFUSED = (
        "LOAD_REFUSED",
        "the kernel refused the BPF program",
        "needs Linux 5.18 or newer; run `rootwalk check --verbose` for its words",
    )
    PID_NAMESPACE = (
        "PID_NAMESPACE",
        "process ids here are not the kernel's own",
        "run the agent in the host's pid namespace (docker: --pid=host)",
    )
    NO_SCHEDSTAT = (
        "NO_SCHEDSTAT",
        "/proc/<pid>/schedstat cannot be read",
        "use a kernel built with CONFIG_SCHED_INFO, and mount /proc",
    )
    NO_BPF = (
        "NO_BPF",
        "reads /proc instead of BPF: sampled, and blind to who ran",
        "see the sensor's first reason in `rootwalk check --json`",
    )
    SWITCHED_OFF = (
        "SWITCHED_OFF",
        "switched off by --without",
        "leave out --without for this sensor",
    )
    NO_TORCH = (
        "NO_TORCH",
        "PyTorch is not installed in this Python",
        "use the training job's Python, or install torch 2.15 or newer",
    )
    OLD_TORCH = (
        "OLD_TORCH",
        "PyTorch is older than its process-group hooks",
        "use torch 2.15 or newer; without them steps and phases only",
    )
    NO_SHARED_MEMORY = (
        "NO_SHARED_MEMORY",
        "shared memory (/dev/shm) is not writable",
        "mount a tmpfs at /dev/shm (docker: --shm-size=64m)",
    )
    NO_DRIVER = (
        "NO_DRIVER",
        "no NVIDIA driver is loaded",
        "nothing to do on a machine without NVIDIA GPUs",
    )
    NO_DEVICE = (
        "NO_DEVICE",
        "there is no such device",
        "nothing to do on a machine without one",
    )
    NO_PSI = (
        "NO_PSI",
        "the kernel has no pressure information (/proc/pressure)",
        "boot with psi=1",
    )
    NO_CGROUP = (
        "NO_CGROUP",
        "no control groups are mounted",
        "mount cgroup2 at /sys/fs/cgroup",
    )
    NO_CPU_LIMITS = (
        "NO_CPU_LIMITS",
        "control groups here cannot limit CPU time",
        "use a kernel built with CONFIG_CFS_BANDWIDTH, and its cpu controller",
    )
    NOT_IN_THIS_VERSION = (
        "NOT_IN_THIS_VERSION",
        "the machine has it, this version does not read it yet",
        "wait for a later version of Rootwalk",
    )


@dataclass(frozen=True, slots=True)
class Sensor:
    """One reader and the state that it is in on this machine.

    Attributes:
        sensor: Name, as `--without` takes it.
        status: Available, degraded or unavailable.
        reason: Why it is not fully available; None when it is.
        tier: Privilege that it uses: 0 none, 1 capabilities, 2 root.
        backend: What it reads with; None when it reads nothing.
        detail: What the machine said, in its own words; None when there is nothing to add.
    """

    sensor: str
    status: Status
    reason: Reason | None
    tier: int
    backend: str | None
    detail: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return the entry of `rootwalk.check/1`."""
        return {
            "sensor": self.sensor,
            "status": self.status.value,
            "reason": self.reason.value if self.reason else None,
            "hint": self.reason.hint if self.reason else None,
            "tier": self.tier,
            "backend": self.backend,
            "detail": self.detail,
        }


def _available(sensor: str, tier: int, backend: str, detail: str | None = None) -> Sensor:
    return Sensor(sensor, Status.AVAILABLE, None, tier, backend, detail)


def _unavailable(sensor: str, reason: Reason, tier: int, detail: str | None = None) -> Sensor:
    return Sensor(sensor, Status.UNAVAILABLE, reason, tier, None, detail)


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
        return _unavailable("instrumentation", Reason.NO_SHARED_MEMORY, TIER_NONE)
    if torch_version is None:
        return _unavailable("instrumentation", Reason.NO_TORCH, TIER_NONE)
    if _version_numbers(torch_version) < OLDEST_TORCH:
        return Sensor(
            "instrumentation", Status.DEGRADED, Reason.OLD_TORCH, TIER_NONE, "hooks", torch_version
        )
    return _available("instrumentation", TIER_NONE, "hooks", f"torch {torch_version}")


def probe_core(root: Path) -> None:
    """Load and unload the scheduler program.

    Raises:
        UnavailableError: With the reason why it cannot be used.
    """
    from rootwalk.ebpf.core_backend import CoreBackend

    if not (root / "sys/kernel/btf/vmlinux").exists():
        raise UnavailableError(
            "cannot load BPF programs: saw no /sys/kernel/btf/vmlinux; needs the kernel's types",
            reason=Reason.NO_BTF,
            hint=Reason.NO_BTF.hint,
        )
    CoreBackend().close()


def probe_sched(
    root: Path, without: Collection[str], load: Callable[[Path], None] = probe_core
) -> Sensor:
    """Return how the scheduler can be read: by BPF, else from /proc, else not at all."""
    why: str | None = None
    reason: Reason
    if "bpf" in without:
        reason = Reason.SWITCHED_OFF
    else:
        try:
            load(root)
            return _available("sched", TIER_CAPABILITIES, "core")
        except UnavailableError as error:
            reason, why = Reason[error.reason], str(error)
    if "procfs" in without or not (root / "proc/self/schedstat").exists():
        return _unavailable("sched", reason, TIER_CAPABILITIES, why)
    return Sensor("sched", Status.DEGRADED, reason, TIER_NONE, "proc", why)


def probe_procfs(root: Path) -> Sensor:
    """Return whether /proc tells threads' scheduler times and processes' names."""
    if not (root / "proc/self/schedstat").exists():
        return _unavailable("procfs", Reason.NO_SCHEDSTAT, TIER_NONE)
    return _available("procfs", TIER_NONE, "proc")


def probe_cgroup(root: Path) -> Sensor:
    """Return whether control groups tell for how long they were throttled."""
    reader = CgroupReader(root)
    if not reader.is_mounted:
        return _unavailable("cgroup", Reason.NO_CGROUP, TIER_NONE)
    backend = reader.backend
    if backend is None or not reader.has_bandwidth:
        return _unavailable("cgroup", Reason.NO_CPU_LIMITS, TIER_NONE)
    return _available("cgroup", TIER_NONE, backend)


# Readers that later versions bring: sensor -> (what must exist, the reason when it does not, privilege).
LATER: Mapping[str, tuple[str, Reason, int]] = {
    "psi": ("proc/pressure/cpu", Reason.NO_PSI, TIER_NONE),
    "nvml": ("proc/driver/nvidia/version", Reason.NO_DRIVER, TIER_NONE),
    "nic_counters": ("sys/class/net/*/device", Reason.NO_DEVICE, TIER_NONE),
    "rdma_counters": ("sys/class/infiniband/*", Reason.NO_DEVICE, TIER_NONE),
}


SENSOR_NAMES = ("instrumentation", "sched", "procfs", "cgroup", *LATER)


def probe_later(root: Path) -> list[Sensor]:
    """Return the sensors that this version does not read, with what stands in the way first."""
    sensors = []
    for sensor, (pattern, missing, tier) in LATER.items():
        is_present = next(root.glob(pattern), None) is not None
        sensors.append(
            _unavailable(sensor, Reason.NOT_IN_THIS_VERSION if is_present else missing, tier)
        )
    return sensors


def probe_sensors(without: Collection[str] = (), root: Path = Path("/")) -> list[Sensor]:
    """Return every sensor and the state that it is in.

    Args:
        without: Names that the user switched off; `bpf` leaves the scheduler to /proc.
        root: Where /proc, /sys and /dev are.
    """
    sensors = [
        probe_instrumentation(root, read_torch_version()),
        probe_sched(root, without),
        probe_procfs(root),
        probe_cgroup(root),
        *probe_later(root),
    ]
    return [
        _unavailable(sensor.sensor, Reason.SWITCHED_OFF, sensor.tier)
        if sensor.sensor in without
        else sensor
        for sensor in sensors
    ]
