"""A rank does more, once."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="one rank runs the forward pass once more, in one step of all",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: TrainingBug("work", until=1, least_s=0.005),
    looks_like="more work on one rank",
)
