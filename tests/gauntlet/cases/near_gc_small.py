"""Collections that find little."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="one rank collects garbage of 30,000 objects in every step, all others frozen",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: TrainingBug(
        "collect", records=30_000, chance=1, freeze="yes", least_s=0.02
    ),
    looks_like="collections on one rank",
    is_quick=True,
)
