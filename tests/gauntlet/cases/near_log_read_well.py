"""A log to a pipe that is read well."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.peers import SlowReader

CASE = Case(
    text="one rank writes 64 KiB a step to a pipe that is read at once",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: SlowReader("pipe", 0.002, 1, least_s=0.001),
    looks_like="a log that blocks",
)
