"""What communication records alone can say, as data: the reasons, and words that claim no more than is known.

A rank that comes late may have been held up by its host or by its device: no record says which, so that the reason is
one that names no cause, and its layer stays open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rootwalk.graph.reasons import Reason

__all__ = ["DECIDING_SENSORS", "FLOW_RULES", "SPENT", "FlowRule"]

# What the evidence of a late rank measures: its seconds in collectives, waiting included.
SPENT: Final = "collective.time"

# What would have seen more: threads, devices, network cards.
DECIDING_SENSORS: Final = ("nic_counters", "nvml", "sched")


@dataclass(frozen=True, slots=True)
class FlowRule:
    """One reason, as its finding has it."""

    layer: str | None
    owner: str
    syndrome: str
    title: str
    action_code: str
    action: str


FLOW_RULES: Final[dict[Reason, FlowRule]] = {
    Reason.UNKNOWN_HOST: FlowRule(
        None,
        "unknown",
        "non_communication_slow",
        "the others wait for it, host or device, cause not seen",
        "ADD_HOST_SENSORS",
        "compare this rank's host and device with its peers'; `rootwalk run` would see why",
    ),
    Reason.UNKNOWN_GPU: FlowRule(
        "device",
        "unknown",
        "non_communication_slow",
        "the others wait for it, its device computes longer than theirs, cause not seen",
        "ADD_DEVICE_SENSORS",
        "compare clocks, power and temperature of this device with its peers'; `rootwalk run` would see them",
    ),
    Reason.UNKNOWN_NET: FlowRule(
        "network",
        "fabric",
        "communication_slow",
        "slower transfers, cause not seen",
        "ADD_NETWORK_SENSORS",
        "check links and NIC counters of these hosts; no sensor saw them",
    ),
}
