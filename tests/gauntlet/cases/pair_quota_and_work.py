"""A quota on one rank, more work on the other."""

from gauntlet.case import OTHER, RANK, Case, Truth
from gauntlet.faults.groups import Quota
from gauntlet.faults.pairs import Both
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="a quota on one rank, and four times the forward work on the other",
    truth=Truth(RANK, ("CPU_QUOTA",), ("operating_system",)),
    also=Truth(OTHER, ("WORK_IMBALANCE",), ("application",)),
    disturbance=lambda: Both(Quota(), TrainingBug("work", who="other", times=3)),
    looks_like="one of both",
)
