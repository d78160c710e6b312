"""A way that takes longer."""

from gauntlet.case import NO_RANK, Case, Truth
from gauntlet.faults.links import Delay
from gauntlet.workloads import DDP_APART

CASE = Case(
    text="packets between two ranks take 6 ms longer each way",
    truth=Truth(NO_RANK, ("UNKNOWN_NET", "NET_CONGESTION"), ("network",)),
    disturbance=lambda: Delay(0.0, 0.006),
    looks_like="loss; a late rank",
    workload=DDP_APART,
)
