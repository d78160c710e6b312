"""A hang: one of four ranks catches an exception and waits."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.workloads import DDP_OF_FOUR

CASE = Case(
    text="one of four ranks catches an exception and waits",
    truth=Truth(RANK, ("NOT_JOINED",), ("application",), kind="hang"),
    disturbance=None,
    looks_like="a rank that is gone; a slow network",
    workload=DDP_OF_FOUR,
    hang="swallow",
)
