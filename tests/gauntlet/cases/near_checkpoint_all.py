"""A checkpoint of every rank onto a fast disk, now and then."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.storage import DiskBug

CASE = Case(
    text="every rank saves 4 MB onto a disk that is not limited, after every 10th step",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: DiskBug(
        "checkpoint", None, who="all", bytes=4_000_000, every=10, least_s=0.01
    ),
    looks_like="a checkpoint onto a slow disk",
    may_say=("GLOBAL_SLOW", "CKPT_IO"),
)
