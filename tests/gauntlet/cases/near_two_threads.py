"""A few threads more than cores."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="one rank may use one thread, as before, and is told so again",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: TrainingBug("threads", least_s=0, count=1),
    looks_like="more threads than cores",
)
