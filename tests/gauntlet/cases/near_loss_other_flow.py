"""Loss on somebody else's connection."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.links import Loss
from gauntlet.workloads import DDP_APART

CASE = Case(
    text="a stranger's connection over the ranks' own link loses packets, 1 of 5",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: Loss(0.2, flow="other"),
    looks_like="a lossy link: the same segments are sent again, by others",
    workload=DDP_APART,
)
