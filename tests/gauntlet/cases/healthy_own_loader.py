"""Ranks that load their own input, nothing is done."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.workloads import DDP_OWN_LOADER

CASE = Case(
    text="DistributedDataParallel whose ranks load their own input, nothing is done to it",
    truth=ACCUSE_NOBODY,
    disturbance=None,
    looks_like="any fault that noise looks like",
    workload=DDP_OWN_LOADER,
)
