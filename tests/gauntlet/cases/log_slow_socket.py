"""A log to a socket that is read slowly."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.peers import SlowReader

CASE = Case(
    text="one rank writes 256 KiB a step to a socket of which somebody reads 64 KiB every 60 ms",
    truth=Truth(RANK, ("BLOCKING_LOG",), ("application",)),
    disturbance=lambda: SlowReader("socket", 0.06, 4),
    looks_like="a slow network; a slow service",
)
