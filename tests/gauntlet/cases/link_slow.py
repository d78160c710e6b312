"""A link that passes less."""

from gauntlet.case import NO_RANK, Case, Truth
from gauntlet.faults.links import Rate
from gauntlet.workloads import DDP_APART

CASE = Case(
    text="the way between two ranks passes 400 Mbit/s from some moment on",
    truth=Truth(NO_RANK, ("NET_CONGESTION", "NIC_RATE"), ("network",)),
    disturbance=Rate,
    looks_like="loss; more work; a late rank",
    workload=DDP_APART,
)
