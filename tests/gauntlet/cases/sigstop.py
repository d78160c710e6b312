"""A rank is stopped and goes on."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.signals import DutyCycle

CASE = Case(
    text="SIGSTOP to one rank for 150 ms in every 600 ms",
    truth=Truth(RANK, ("PROCESS_SUSPENDED",), ("operating_system",)),
    disturbance=DutyCycle,
    looks_like="a wait for something; contention",
    is_quick=True,
)
