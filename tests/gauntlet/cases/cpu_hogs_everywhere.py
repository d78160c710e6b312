"""Many processes on the whole machine."""

from gauntlet.case import NO_RANK, Case, Truth
from gauntlet.faults.processes import Hogs

CASE = Case(
    text="two processes a core on the whole machine, bound to none",
    truth=Truth(NO_RANK, ("CPU_CONTENTION",), ("operating_system",)),
    disturbance=lambda: Hogs(count=4, where="anywhere"),
    looks_like="all ranks slower for a reason of the job's own",
)
