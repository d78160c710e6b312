"""A pipeline of which all stages have more work."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import TrainingBug
from gauntlet.workloads import PIPELINE

CASE = Case(
    text="a pipeline of two stages: both have four times more forward work in every micro-batch",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: TrainingBug("work", who="all", times=4),
    looks_like="one slow stage",
    workload=PIPELINE,
    may_say=("GLOBAL_SLOW",),
)
