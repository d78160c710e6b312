"""A hang: one of four ranks uses two groups in the opposite order."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.workloads import DDP_OF_FOUR

CASE = Case(
    text="one of four ranks uses two groups in the opposite order, for once",
    truth=Truth(RANK, ("COLLECTIVE_DEADLOCK",), ("collective",), kind="hang"),
    disturbance=None,
    looks_like="a rank that does not join",
    workload=DDP_OF_FOUR,
    hang="cross_order",
)
