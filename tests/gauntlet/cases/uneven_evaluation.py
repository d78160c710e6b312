"""An evaluation on one rank."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="one rank evaluates four batches after every step",
    truth=Truth(RANK, ("UNEVEN_EVAL",), ("application",)),
    disturbance=lambda: TrainingBug("evaluate", times=4),
    looks_like="more work; contention",
)
