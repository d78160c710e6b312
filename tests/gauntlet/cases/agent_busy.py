"""The agent itself takes a rank's core."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.places import BusyAgent

CASE = Case(
    text="a thread in the agent's process computes on one rank's core for half of the time, before everybody else",
    truth=Truth(RANK, ("MONITOR_SELF",), ("operating_system",)),
    disturbance=BusyAgent,
    looks_like="contention by a stranger",
)
