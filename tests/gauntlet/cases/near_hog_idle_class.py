"""A process on one rank's core that takes only what nobody else wants."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.processes import Hogs

CASE = Case(
    text="another process on one rank's core, of the idle class, for 1 ms now and then",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: Hogs(before=("chrt", "-i", "0"), least_s=0.02, rest_s=0.4),
    looks_like="contention",
)
