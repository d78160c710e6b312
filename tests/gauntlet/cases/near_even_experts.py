"""A router that is overruled, and sends as many tokens to every expert."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import EvenExperts
from gauntlet.workloads import MOE

CASE = Case(
    text="a mixture of experts: from some moment on every expert gets as many tokens",
    truth=ACCUSE_NOBODY,
    disturbance=EvenExperts,
    looks_like="a hot expert: other tokens go to other experts",
    workload=MOE,
)
