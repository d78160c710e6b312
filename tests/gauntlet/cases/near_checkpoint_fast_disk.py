"""A checkpoint of one rank onto a fast disk, now and then."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.storage import DiskBug

CASE = Case(
    text="one rank saves 1 MB onto a disk that is not limited, after every 30th step",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: DiskBug("checkpoint", None, bytes=1_000_000, every=30, least_s=0.001),
    looks_like="a checkpoint onto a slow disk",
)
