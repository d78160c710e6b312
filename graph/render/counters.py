"""Say what a counter did, in words: its value a step in its own unit, and what it was before and elsewhere."""

from __future__ import annotations

from typing import Final

from rootwalk.graph.model import EvidenceView
from rootwalk.graph.reasons import Reason, Signal

__all__ = ["CALLS_SHOWN", "COUNTERS_SHOWN", "COUNTER_NAMES", "counter_text"]

COUNTER_NAMES: Final[dict[Signal, str]] = {
    Signal.CARRIER: "changes of the link",
    Signal.RETRANSMITTED: "segments sent again",
    Signal.DROPPED: "packets dropped",
    Signal.NET_ERRORS: "packets with errors",
    Signal.NIC_EVENTS: "losses that the card counts",
    Signal.RDMA_EVENTS: "events that the port counts",
    Signal.ROUND_TRIP: "round trip",
    Signal.PAUSE: "link paused",
    Signal.LINK_RATE: "rate of the link",
    Signal.STOLEN: "CPU time taken on its host",
    Signal.CLOCK: "clock",
    Signal.CPU_PROBE: "the same little work on its CPU",
    Signal.SWAPPED_IN: "pages read from swap",
    Signal.MAJOR_FAULTS: "its faults that read a page",
    Signal.KILLED: "kills of its processes",
    Signal.GROUP_EVENTS: "kills in its control group",
    Signal.ALLOWED: "CPUs that it may use",
    Signal.SHARED_CORES: "cores that another rank may use too",
    Signal.FAR_PAGES: "pages on another NUMA node",
    Signal.GPU_CLOCK: "clock of its GPU",
    Signal.GPU_PROCESSES: "processes on its GPU",
    Signal.GPU_PEERS: "GPUs reached directly",
    Signal.PCIE_RATE: "link of its GPU to the host",
    Signal.NVLINKS: "NVLinks that are up",
    Signal.DEVICE_ERRORS: "memory errors of its GPU",
    Signal.KERNEL_MESSAGE: "lines of the kernel's log",
    Signal.THREAD_TIME: "run-queue wait of collectives' threads",
    Signal.NETWORK_IO: "sent to other ranks over TCP",
    Signal.NCCL_CONNECTIONS: "connections of NCCL over TCP",
    Signal.COMPILING: "compiled",
    Signal.ALLOCATOR_RETRIES: "retries of the allocator",
    Signal.EVALUATING: "evaluated",
    Signal.EXPERT_SIZE: "sent in all-to-alls",
    Signal.STAGE_MESSAGES: "messages to other stages",
    Signal.COLLECTIVES: "collectives",
    Signal.LAUNCH_GAP: "device idle while operators ran",
    Signal.SYNCHRONIZING: "in calls that wait for the device",
    Signal.EXPOSED: "device did nothing but communicate",
    Signal.RANK_END: "ends of its process",
    Signal.SENT_SIGNAL: "signals to its process",
    Signal.CUDA_TIME: "in calls of CUDA for that",
    Signal.CUDA_CALLS: "calls of CUDA for that",
}
# What to show first for each reason: the first of them that was measured.
_LOSSES = (Signal.RETRANSMITTED, Signal.DROPPED, Signal.NET_ERRORS, Signal.NIC_EVENTS)
COUNTERS_SHOWN: Final[dict[Reason, tuple[Signal, ...]]] = {
    Reason.NET_FLAP: (Signal.CARRIER, Signal.RDMA_EVENTS),
    Reason.NET_LOSS: (*_LOSSES, Signal.RDMA_EVENTS),
    Reason.NIC_RATE: (Signal.LINK_RATE,),
    Reason.NET_CONGESTION: (Signal.ROUND_TRIP, Signal.PAUSE, Signal.RDMA_EVENTS),
    Reason.CPU_STEAL: (Signal.STOLEN,),
    Reason.CPU_FREQ: (Signal.CLOCK, Signal.CPU_PROBE),
    Reason.SWAP: (Signal.SWAPPED_IN, Signal.MAJOR_FAULTS),
    Reason.OOM_KILL: (Signal.KILLED, Signal.GROUP_EVENTS),
    Reason.RANK_KILLED: (Signal.SENT_SIGNAL,),
    Reason.RANK_CRASHED: (Signal.RANK_END,),
    Reason.CPU_AFFINITY: (Signal.ALLOWED, Signal.SHARED_CORES),
    Reason.NUMA_REMOTE: (Signal.FAR_PAGES,),
    Reason.GPU_THERMAL: (Signal.GPU_CLOCK,),
    Reason.GPU_POWER: (Signal.GPU_CLOCK,),
    Reason.GPU_CLOCK_PIN: (Signal.GPU_CLOCK,),
    Reason.GPU_ECC: (Signal.DEVICE_ERRORS, Signal.KERNEL_MESSAGE),
    Reason.GPU_LOST: (Signal.KERNEL_MESSAGE,),
    Reason.GPU_COTENANT: (Signal.GPU_PROCESSES,),
    Reason.PCIE_DEGRADED: (Signal.PCIE_RATE,),
    Reason.P2P_OFF: (Signal.GPU_PEERS,),
    Reason.NVLINK: (Signal.NVLINKS, Signal.KERNEL_MESSAGE),
    Reason.GPU_SILENT_SLOW: (Signal.DEVICE_WAIT, Signal.CUDA_TIME, Signal.GPU_CLOCK),
    Reason.COMPILE: (Signal.COMPILING,),
    Reason.ALLOCATOR: (Signal.ALLOCATOR_RETRIES,),
    Reason.UNEVEN_EVAL: (Signal.EVALUATING,),
    Reason.EXPERT_IMBALANCE: (Signal.EXPERT_SIZE,),
    Reason.ACCIDENTAL_SYNC: (Signal.SYNCHRONIZING,),
    Reason.LAUNCH_BOUND: (Signal.LAUNCH_GAP,),
    Reason.OVERLAP_LOST: (Signal.EXPOSED,),
    Reason.PROXY_STARVED: (Signal.THREAD_TIME,),
    Reason.TRANSPORT_FALLBACK: (Signal.NETWORK_IO, Signal.NCCL_CONNECTIONS),
}
# Where calls of CUDA are the evidence, whatever they are for.
CALLS_SHOWN: Final = (Signal.CUDA_TIME, Signal.CUDA_CALLS)
# Levels are what they are; everything else is counted in a step.
_LEVELS: Final = frozenset(
    {
        Signal.ROUND_TRIP,
        Signal.LINK_RATE,
        Signal.CLOCK,
        Signal.CPU_PROBE,
        Signal.ALLOWED,
        Signal.SHARED_CORES,
        Signal.GPU_CLOCK,
        Signal.GPU_PROCESSES,
        Signal.GPU_PEERS,
        Signal.PCIE_RATE,
        Signal.NVLINKS,
    }
)
_SCALES: Final[dict[str, tuple[float, str]]] = {
    "Hz": (1e-9, "GHz"),
    "By/s": (8e-9, "Gbit/s"),
    "By": (1e-6, "MB"),
}


def counter_text(name: str, row: EvidenceView) -> str:
    """Return what a counter did.

    >>> row = EvidenceView("training.cpu.frequency", 1.2e9, "Hz", None, 3e9, 9.0, None, None, None)
    >>> counter_text("clock", row)
    'clock 1.20 GHz, before 3.00 GHz'
    """
    ending = "" if row.signal in _LEVELS else "/step"
    text = f"{name} {_amount(row.value, row)}{ending}"
    if row.history is not None:
        text += f", before {_amount(row.history, row)}"
    if row.peers is not None:
        text += f", peers {_amount(row.peers, row)}"
    return text


def _amount(value: float | None, row: EvidenceView) -> str:
    if value is None:
        return "unknown"
    if row.unit == "s" and 0.0 < abs(value) < 1e-4:
        return f"{value * 1e6:.0f} us"
    if row.unit == "s":
        return f"{value:.3f} s" if abs(value) >= 0.01 or not value else f"{value * 1e3:.2f} ms"
    factor, unit = _SCALES.get(row.unit, (1.0, ""))
    return f"{value * factor:.2f} {unit}".rstrip()
