"""Compilation again and again."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="a compiled function of one rank meets a new shape in every step",
    truth=Truth(RANK, ("COMPILE",), ("framework",)),
    disturbance=lambda: TrainingBug("compile"),
    looks_like="more work; garbage collection",
)
