"""A process on one rank's core."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.processes import Hogs

CASE = Case(
    text="another process burns CPU on one rank's core, at the usual priority",
    truth=Truth(RANK, ("CPU_CONTENTION",), ("operating_system",)),
    disturbance=Hogs,
    looks_like="a quota; more work of its own; a slow network",
    is_quick=True,
)
