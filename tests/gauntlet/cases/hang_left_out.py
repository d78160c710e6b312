"""A hang: one of four ranks has a batch fewer and leaves out the last collectives."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.workloads import DDP_OF_FOUR

CASE = Case(
    text="one of four ranks has a batch fewer and leaves out the last collectives",
    truth=Truth(RANK, ("NOT_JOINED",), ("application",), kind="hang"),
    disturbance=None,
    looks_like="a rank that is gone; a slow network",
    workload=DDP_OF_FOUR,
    hang="leave",
)
