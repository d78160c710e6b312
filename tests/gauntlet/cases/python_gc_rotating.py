"""Collections on all ranks, one after the other."""

from gauntlet.case import NO_RANK, Case, Truth
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="the ranks take turns, step by step, to collect garbage of a million objects",
    truth=Truth(NO_RANK, ("PY_GC",), ("application",)),
    disturbance=lambda: TrainingBug("collect", who="all", turns="yes", chance=1),
    looks_like="a fault of one rank",
)
