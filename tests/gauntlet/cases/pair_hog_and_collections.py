"""A process on one rank's core, collections on the other."""

from gauntlet.case import OTHER, RANK, Case, Truth
from gauntlet.faults.pairs import Both
from gauntlet.faults.processes import Hogs
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="a process on one rank's core, and garbage collections on the other rank",
    truth=Truth(RANK, ("CPU_CONTENTION",), ("operating_system",)),
    also=Truth(OTHER, ("PY_GC",), ("application",)),
    disturbance=lambda: Both(Hogs(), TrainingBug("collect", who="other")),
    looks_like="one of both",
)
