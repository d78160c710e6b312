"""As many threads as before."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="one rank is told to use one thread, as it did before",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: TrainingBug("threads", least_s=0, count=1),
    looks_like="more threads than cores",
)
