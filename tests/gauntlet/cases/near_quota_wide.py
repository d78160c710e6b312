"""A limit that the rank never reaches."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.groups import Quota

CASE = Case(
    text="a control group's limit of four CPUs on one rank, which it never reaches",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: Quota(cpus=4.0, least=0),
    looks_like="a quota on a rank",
)
