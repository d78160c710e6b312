"""A hang: one of four ranks waits for a worker in a lock that was copied by a fork."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.workloads import DDP_OF_FOUR

CASE = Case(
    text="one of four ranks waits for a worker in a lock that was copied by a fork",
    truth=Truth(RANK, ("FORK_DEADLOCK",), ("application",), kind="hang"),
    disturbance=None,
    looks_like="a rank that does not join",
    workload=DDP_OF_FOUR,
    hang="fork_with_lock",
    profile_hz=19,
)
