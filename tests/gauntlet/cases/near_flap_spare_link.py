"""A link that goes down where nobody uses it."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.links import Flap
from gauntlet.workloads import DDP_APART

CASE = Case(
    text="a link beside the ranks' own goes down for 0.3 s every 2 s",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: Flap(where="spare"),
    looks_like="a flapping link between the ranks",
    workload=DDP_APART,
)
