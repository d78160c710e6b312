"""Four ranks on two cores, nothing is done."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.workloads import DDP_OF_FOUR

CASE = Case(
    text="DistributedDataParallel on four ranks, nothing is done to it",
    truth=ACCUSE_NOBODY,
    disturbance=None,
    looks_like="any fault that noise looks like",
    workload=DDP_OF_FOUR,
)
