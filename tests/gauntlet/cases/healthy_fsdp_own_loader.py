"""Sharded weights, ranks that load their own input, nothing is done."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.workloads import FSDP_OWN_LOADER

CASE = Case(
    text="Sharded weights on ranks that load their own input, nothing is done to it",
    truth=ACCUSE_NOBODY,
    disturbance=None,
    looks_like="any fault that noise looks like",
    workload=FSDP_OWN_LOADER,
)
