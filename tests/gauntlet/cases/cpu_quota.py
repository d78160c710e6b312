"""A control group's limit on one rank."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.groups import Quota

CASE = Case(
    text="a control group's limit of half a CPU on one rank and its loader",
    truth=Truth(RANK, ("CPU_QUOTA",), ("operating_system",)),
    disturbance=Quota,
    looks_like="contention, but nobody runs in its place",
    is_quick=True,
)
