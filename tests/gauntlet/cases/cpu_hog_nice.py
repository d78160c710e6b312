"""A process on one rank's core that goes before it."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.processes import Hogs

CASE = Case(
    text="another process on one rank's core, at nice -10",
    truth=Truth(RANK, ("CPU_CONTENTION",), ("operating_system",)),
    disturbance=lambda: Hogs(before=("nice", "-n", "-10")),
    looks_like="a quota; a rank that is stopped",
)
