"""A rank is frozen and goes on."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.signals import Freezer

CASE = Case(
    text="a control group's freezer holds one rank for 150 ms in every 600 ms",
    truth=Truth(RANK, ("PROCESS_SUSPENDED",), ("operating_system",)),
    disturbance=Freezer,
    looks_like="a wait for a disk; contention",
)
