"""A process on one rank's core that takes only what nobody else wants."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.processes import Hogs

CASE = Case(
    text="another process on one rank's core, of the idle class",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: Hogs(before=("chrt", "-i", "0"), least_s=0.2),
    looks_like="contention",
)
