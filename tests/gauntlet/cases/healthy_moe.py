"""A mixture of experts, nothing is done."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.workloads import MOE

CASE = Case(
    text="A mixture of experts, nothing is done to it",
    truth=ACCUSE_NOBODY,
    disturbance=None,
    looks_like="any fault that noise looks like",
    workload=MOE,
)
