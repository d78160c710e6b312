"""An evaluation on all ranks."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="all ranks evaluate ten batches, once",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: TrainingBug("evaluate", who="all", times=10, until=1, least_s=0.02),
    looks_like="an evaluation on one rank",
    may_say=("GLOBAL_SLOW",),
)
