"""A real-time process on one rank's core."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.processes import Hogs
from gauntlet.workloads import DDP_SHORT

CASE = Case(
    text="a real-time process on one rank's core: the rank gets a twentieth of a second in each",
    truth=Truth(RANK, ("CPU_CONTENTION",), ("operating_system",)),
    disturbance=lambda: Hogs(before=("chrt", "-f", "10")),
    looks_like="a rank that is stopped; a hang",
    workload=DDP_SHORT,
)
