"""A long way that has always been so."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.links import Delay
from gauntlet.workloads import DDP_APART

CASE = Case(
    text="packets between two ranks take 1 ms each way, in all steps alike",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: Delay(0.001, 0.001),
    looks_like="a way that has become longer",
    workload=DDP_APART,
)
