"""What can be read here and what cannot: the state of a sensor, and the reasons why one is missing.

Owns the words for people. Knows nothing of how anything is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rootwalk.instrumentation.semconv import RootwalkSensorStatus as Status

__all__ = [
    "TIER_CAPABILITIES",
    "TIER_NONE",
    "TIER_ROOT",
    "Reason",
    "Sensor",
    "Status",
    "available",
    "unavailable",
]

TIER_NONE, TIER_CAPABILITIES, TIER_ROOT = 0, 1, 2


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
    NO_BCC = (
        "NO_BCC",
        "the BPF compiler collection is not installed",
        "install it (Debian, Ubuntu: apt-get install python3-bpfcc)",
    )
    WRONG_BCC = (
        "WRONG_BCC",
        "the Python package bcc is not the BPF compiler collection",
        "pip uninstall bcc; apt-get install python3-bpfcc (PyPI has no such package)",
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
        "needs Linux 5.15 or newer; run `rootwalk check --verbose` for its words",
    )
    NO_HOOK = (
        "NO_HOOK",
        "the kernel does not have what the BPF program attaches to",
        "nothing to do on this kernel; newer ones have it",
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
    NO_PROCFS = (
        "NO_PROCFS",
        "/proc/<pid>/stat cannot be read",
        "mount /proc",
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
    NO_UPROBES = (
        "NO_UPROBES",
        "the kernel refuses this user probes in the functions of libraries",
        "run as root, or grant CAP_PERFMON (before Linux 6.6: CAP_SYS_ADMIN)",
    )
    NO_CUDA = (
        "NO_CUDA",
        "no rank has loaded the library of NVIDIA's driver (libcuda.so.1)",
        "nothing to do for ranks that train without a GPU",
    )
    NO_CUDA_FUNCTIONS = (
        "NO_CUDA_FUNCTIONS",
        "the CUDA libraries of the ranks do not export the functions that are known",
        "see the agent's log for their names; report them with the library's version",
    )
    SLOW_FUNCTIONS = (
        "SLOW_FUNCTIONS",
        "some functions begin so that a probe would cost 10 us a call; they are left out",
        "see the agent's log for their names; ROOTWALK_CUDA_SLOW=1 attaches to them all the same",
    )
    NO_DRIVER = (
        "NO_DRIVER",
        "no NVIDIA driver is loaded",
        "nothing to do on a machine without NVIDIA GPUs",
    )
    NO_NVML_PACKAGE = (
        "NO_NVML_PACKAGE",
        "the Python package nvidia-ml-py is not installed",
        "pip install nvidia-ml-py",
    )
    WRONG_NVML_PACKAGE = (
        "WRONG_NVML_PACKAGE",
        "the deprecated package pynvml stands in the way of nvidia-ml-py",
        "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py",
    )
    NO_NVML_LIBRARY = (
        "NO_NVML_LIBRARY",
        "the driver's library (libnvidia-ml.so.1) cannot be loaded",
        "install the driver's libraries (in a container: NVIDIA_DRIVER_CAPABILITIES=utility)",
    )
    DRIVER_MISMATCH = (
        "DRIVER_MISMATCH",
        "the NVIDIA driver and its library are of different versions",
        "restart the host, or load the driver again, after an update of it",
    )
    NO_DEVICE_PERMISSION = (
        "NO_DEVICE_PERMISSION",
        "the NVIDIA driver refuses this user",
        "give it access to /dev/nvidia* (docker: --gpus=all), or run as root",
    )
    DRIVER_SILENT = (
        "DRIVER_SILENT",
        "the NVIDIA driver does not answer: it starts, or it hangs",
        "see the kernel's log for Xid 119 or 120; nvidia-smi would hang as well",
    )
    DEVICE_LOST = (
        "DEVICE_LOST",
        "a GPU does not answer the driver any more",
        "see the kernel's log for Xid 79; reset the GPU or restart the host",
    )
    MIG = (
        "MIG",
        "a GPU is divided (MIG): what its parts do is not told apart",
        "read its parts with DCGM, or switch MIG off for training",
    )
    VGPU = (
        "VGPU",
        "a GPU is a part that a hypervisor shows: most of it is not told",
        "ask the provider of the machine",
    )
    NVML_FAILED = (
        "NVML_FAILED",
        "NVML reports an error that says nothing more",
        "run nvidia-smi and see the kernel's log",
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
    NO_KERNEL_LOG = (
        "NO_KERNEL_LOG",
        "the kernel's log (/dev/kmsg) cannot be read",
        "run as root, or grant CAP_SYSLOG (docker: --device=/dev/kmsg as well)",
    )
    NO_INET_DIAG = (
        "NO_INET_DIAG",
        "the kernel does not answer questions about TCP connections",
        "use a kernel built with CONFIG_INET_TCP_DIAG, or load its module (modprobe tcp_diag)",
    )
    OWN_NETWORK_ONLY = (
        "OWN_NETWORK_ONLY",
        "only this network namespace can be read; ranks in containers may have others",
        "run as root, or grant CAP_SYS_ADMIN and CAP_SYS_PTRACE",
    )
    NO_COUNTERS = (
        "NO_COUNTERS",
        "the kernel does not publish these counters",
        "mount /proc and /sys; in a container, the host's",
    )
    NO_CPU_CLOCK = (
        "NO_CPU_CLOCK",
        "nothing measures the CPUs' clocks here, as in most virtual machines",
        "load the cpufreq driver on a machine of your own; ask the provider otherwise",
    )
    READER_FAILED = (
        "READER_FAILED",
        "the reader failed while it was at work, and was left out",
        "see the agent's log for its error, and start the agent again",
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


def available(sensor: str, tier: int, backend: str, detail: str | None = None) -> Sensor:
    """Return a sensor that can be read."""
    return Sensor(sensor, Status.AVAILABLE, None, tier, backend, detail)


def unavailable(sensor: str, reason: Reason, tier: int, detail: str | None = None) -> Sensor:
    """Return a sensor that cannot be read."""
    return Sensor(sensor, Status.UNAVAILABLE, reason, tier, None, detail)
