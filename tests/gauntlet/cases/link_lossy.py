"""A link that loses packets."""

from gauntlet.case import NO_RANK, Case, Truth
from gauntlet.faults.links import Loss
from gauntlet.workloads import DDP_APART

CASE = Case(
    text="from some moment on the way between two ranks loses packets, 5 of 100, both ways",
    truth=Truth(NO_RANK, ("NET_LOSS",), ("network",)),
    disturbance=Loss,
    looks_like="a link that goes down; a slow link; retransmits of every healthy job",
    workload=DDP_APART,
)
