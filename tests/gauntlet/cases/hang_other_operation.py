"""A hang: one of four ranks takes part in another operation."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.workloads import DDP_OF_FOUR

CASE = Case(
    text="one of four ranks takes part in another operation",
    truth=Truth(RANK, ("COLLECTIVE_MISMATCH",), ("collective",), kind="hang"),
    disturbance=None,
    looks_like="a rank that does not join",
    workload=DDP_OF_FOUR,
    hang="other_operation",
)
