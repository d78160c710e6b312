"""A link that goes down and comes up."""

from gauntlet.case import NO_RANK, Case, Truth
from gauntlet.faults.links import Flap
from gauntlet.workloads import DDP_APART

CASE = Case(
    text="one rank's link goes down for 0.3 s every 2 s",
    truth=Truth(NO_RANK, ("NET_FLAP",), ("network",)),
    disturbance=Flap,
    looks_like="loss: what is sent meanwhile is lost",
    workload=DDP_APART,
)
