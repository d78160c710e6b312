"""Sharded weights, a process on one rank's core."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.processes import Hogs
from gauntlet.workloads import FSDP

CASE = Case(
    text="Sharded weights: another process burns CPU on one rank's core",
    truth=Truth(RANK, ("CPU_CONTENTION",), ("operating_system",)),
    disturbance=Hogs,
    looks_like="a quota; more work of its own; a slow network",
    workload=FSDP,
)
