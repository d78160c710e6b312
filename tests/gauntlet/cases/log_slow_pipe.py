"""A log to a pipe that is read slowly."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.peers import SlowReader

CASE = Case(
    text="one rank writes 64 KiB a step to a pipe of which somebody reads 64 KiB every 250 ms",
    truth=Truth(RANK, ("BLOCKING_LOG",), ("application",)),
    disturbance=lambda: SlowReader("pipe", 0.25, 1),
    looks_like="a slow disk; a slow service",
    is_quick=True,
)
