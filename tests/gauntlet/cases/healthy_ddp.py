"""Nothing is done."""

from gauntlet.case import ACCUSE_NOBODY, Case

CASE = Case(
    text="DistributedDataParallel, nothing is done to it",
    truth=ACCUSE_NOBODY,
    disturbance=None,
    looks_like="any fault that noise looks like",
    is_quick=True,
)
