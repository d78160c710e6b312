"""A pipeline of two stages, a control group's limit on one rank."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.groups import Quota
from gauntlet.workloads import PIPELINE

CASE = Case(
    text="A pipeline of two stages: a control group's limit of half a CPU on one rank",
    truth=Truth(RANK, ("CPU_QUOTA",), ("operating_system",)),
    disturbance=Quota,
    looks_like="contention, but nobody runs in its place",
    workload=PIPELINE,
)
