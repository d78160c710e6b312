"""A router that is overruled: as many tokens for every expert, and from some moment on others for each."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import EvenExperts
from gauntlet.workloads import MOE

CASE = Case(
    text="a mixture of experts, as many tokens for each: from some moment on each gets other ones",
    truth=ACCUSE_NOBODY,
    disturbance=EvenExperts,
    looks_like="a hot expert: other tokens go to other experts",
    workload=MOE,
)
