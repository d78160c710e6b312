"""Rules of the reasons: the GPU that a rank computes on, and its links."""

from __future__ import annotations

from typing import Final

from rootwalk.graph.reasons.codes import Reason, Signal
from rootwalk.graph.reasons.rule import BY_COUNTER, NO_GC, NO_LIMIT, NO_STRANGER, Rule

# A rank that spins until its device is done looks as if it worked: more work of its own excludes nothing here.
_NOBODY_ELSE: Final = (NO_STRANGER, *NO_LIMIT, NO_GC)


def _rule(
    reason: Reason,
    title: str,
    magnitude: Signal,
    action_code: str,
    action: str,
    excludes: tuple[tuple[str, Signal, str], ...] = _NOBODY_ELSE,
) -> Rule:
    """Return the rule of a reason that counters of a device tell."""
    told = (title, magnitude, BY_COUNTER, excludes, action_code, action)
    return Rule(reason, "device", "node", *told)


RULES: Final[tuple[Rule, ...]] = (
    _rule(
        Reason.GPU_THERMAL,
        "its GPU is too hot and clocked down",
        Signal.GPU_CLOCK,
        "COOL_DEVICE",
        "look at cooling and air flow of that GPU; drain the host if it recurs",
    ),
    _rule(
        Reason.GPU_POWER,
        "its GPU is held back for power",
        Signal.GPU_CLOCK,
        "CHECK_POWER",
        "compare the power limit with that of other hosts; look at power supply and rack",
    ),
    _rule(
        Reason.GPU_CLOCK_PIN,
        "a setting holds its GPU's clock down",
        Signal.GPU_CLOCK,
        "RESET_CLOCKS",
        "reset the clocks of that GPU (nvidia-smi -rgc -rac) and switch persistence on",
    ),
    _rule(
        Reason.GPU_ECC,
        "its GPU has memory errors",
        Signal.DEVICE_ERRORS,
        "RESET_DEVICE",
        "reset that GPU when the job is off it; return it if errors or remapped rows go on",
    ),
    _rule(
        Reason.GPU_LOST,
        "its GPU does not answer",
        Signal.KERNEL_MESSAGE,
        "RESTART_HOST",
        "drain and restart the host; reseat or return the GPU if it recurs",
    ),
    _rule(
        Reason.GPU_COTENANT,
        "another process computes on its GPU",
        Signal.GPU_PROCESSES,
        "FREE_DEVICE",
        "find and end the other process (nvidia-smi), or give the rank the GPU alone",
    ),
    _rule(
        Reason.PCIE_DEGRADED,
        "its GPU's PCI Express link is far below what it was",
        Signal.PCIE_RATE,
        "RESEAT_DEVICE",
        "look at generation and width of that link and its errors in the kernel's log; reseat",
    ),
    _rule(
        Reason.P2P_OFF,
        "peer access is off",
        Signal.GPU_PEERS,
        "ALLOW_PEERS",
        "see what switched peer access off: ACS, IOMMU, a virtual machine, a container's limits",
        (),
    ),
    _rule(
        Reason.NVLINK,
        "NVLinks are down or in error",
        Signal.NVLINKS,
        "CHECK_NVLINK",
        "look at nvidia-smi nvlink and the fabric manager; reset or return the GPU",
        (),
    ),
    _rule(
        Reason.GPU_SILENT_SLOW,
        "its GPU computes more slowly at the same clock",
        Signal.GPU_CLOCK,
        "SWAP_DEVICE",
        "time the same kernel on that GPU and on another; swap or return it if it stays slower",
    ),
    Rule(
        Reason.UNKNOWN_GPU,
        "device",
        "unknown",
        "waits for its device, cause not seen",
        Signal.DEVICE_WAIT,
        (("sched", 0.5), ("nvml", 0.5)),
        _NOBODY_ELSE,
        "ADD_DEVICE_SENSORS",
        "look at this rank's GPU (clocks, temperature, errors, processes); no sensor saw it",
    ),
)
