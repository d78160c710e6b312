"""A pipeline stage with more work."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.training import TrainingBug
from gauntlet.workloads import PIPELINE

CASE = Case(
    text="a pipeline of two stages: one has four times more forward work in every micro-batch",
    truth=Truth(RANK, ("STAGE_IMBALANCE",), ("application",)),
    disturbance=lambda: TrainingBug("work", times=4),
    looks_like="a slow core; contention; a rank that does more than those of its stage",
    workload=PIPELINE,
)
