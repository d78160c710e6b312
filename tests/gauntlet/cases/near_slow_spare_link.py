"""A slow link that nobody waits for."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.links import Rate
from gauntlet.workloads import DDP_APART

CASE = Case(
    text="a link beside the ranks' own passes 2 Mbit/s, and a stranger's connection is held back by it",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: Rate("2mbit", where="spare"),
    looks_like="a slow link between the ranks",
    workload=DDP_APART,
)
