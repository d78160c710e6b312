"""Packets are handled on one rank's core."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.places import Packets

CASE = Case(
    text="a flood of packets of another network is handled in soft interrupts on one rank's core",
    truth=Truth(RANK, ("IRQ_SOFTIRQ",), ("operating_system",)),
    disturbance=Packets,
    looks_like="contention; more work",
)
