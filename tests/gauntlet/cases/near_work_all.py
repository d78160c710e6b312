"""All ranks do more."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="all ranks run the forward pass twice more in every step",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: TrainingBug("work", who="all", times=2),
    looks_like="more work on one rank",
    may_say=("GLOBAL_SLOW",),
)
