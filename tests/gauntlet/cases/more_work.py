"""One rank does more."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="one rank runs the forward pass three times more in every step",
    truth=Truth(RANK, ("WORK_IMBALANCE",), ("application",)),
    disturbance=lambda: TrainingBug("work", times=3),
    looks_like="contention; a slow core",
)
