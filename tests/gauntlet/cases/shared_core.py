"""A rank is bound to another rank's core."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.places import SharedCore

CASE = Case(
    text="all threads of one rank are bound to the core of the other, its own is idle",
    truth=Truth(RANK, ("CPU_AFFINITY",), ("operating_system",)),
    disturbance=SharedCore,
    looks_like="contention; a quota",
)
