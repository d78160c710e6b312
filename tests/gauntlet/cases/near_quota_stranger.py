"""A throttled process that is no rank."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.groups import QuotaOnStranger

CASE = Case(
    text="a control group's limit on a process that is no rank, on one rank's core",
    truth=ACCUSE_NOBODY,
    disturbance=QuotaOnStranger,
    looks_like="a quota on a rank",
    is_quick=True,
)
