"""A process on one rank's core, a blocking log on the other."""

from gauntlet.case import OTHER, RANK, Case, Truth
from gauntlet.faults.pairs import Both
from gauntlet.faults.peers import SlowReader
from gauntlet.faults.processes import Hogs

CASE = Case(
    text="a process on one rank's core, and the other writes to a pipe that is read slowly",
    truth=Truth(RANK, ("CPU_CONTENTION",), ("operating_system",)),
    also=Truth(OTHER, ("BLOCKING_LOG",), ("application",)),
    disturbance=lambda: Both(Hogs(), SlowReader("pipe", 0.45, 1, who="other")),
    looks_like="one of both",
)
