"""A hang: one of four ranks reduces a tensor of another size."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.workloads import DDP_OF_FOUR

CASE = Case(
    text="one of four ranks reduces a tensor of another size",
    truth=Truth(RANK, ("COLLECTIVE_MISMATCH",), ("collective",), kind="hang"),
    disturbance=None,
    looks_like="a rank that does not join",
    workload=DDP_OF_FOUR,
    hang="other_size",
)
