"""A hang: one of four ranks is killed."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.workloads import DDP_OF_FOUR

CASE = Case(
    text="one of four ranks is killed",
    truth=Truth(RANK, ("RANK_GONE",), ("application",), kind="hang"),
    disturbance=None,
    looks_like="a rank that does not join",
    workload=DDP_OF_FOUR,
    hang="killed",
    is_quick=True,
)
