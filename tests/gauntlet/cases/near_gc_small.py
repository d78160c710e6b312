"""Collections that find little."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="one rank collects garbage of a few thousand objects in every step",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: TrainingBug("collect", records=2_000, chance=1, least_s=0.05),
    looks_like="collections on one rank",
    is_quick=True,
)
