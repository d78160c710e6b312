"""A rank is bound to the core that it has."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.places import SharedCore

CASE = Case(
    text="all threads of one rank are bound to the core where they are",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: SharedCore("own"),
    looks_like="a rank bound to another rank's core",
)
