"""Collections on all ranks at once."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="all ranks collect garbage in every step, at the same time",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: TrainingBug("collect", who="all", records=300_000, chance=1),
    looks_like="collections on one rank",
    may_say=("GLOBAL_SLOW", "PY_GC"),
)
