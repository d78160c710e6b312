"""Collections on one rank."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="one rank collects garbage of a million objects in every second step",
    truth=Truth(RANK, ("PY_GC",), ("application",)),
    disturbance=lambda: TrainingBug("collect"),
    looks_like="more work; the interpreter lock",
    is_quick=True,
)
