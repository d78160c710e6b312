"""One compilation."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="a compiled function of one rank meets the same shape in every step",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: TrainingBug("compile", same="yes", least_s=0.001),
    looks_like="compilation in every step",
)
