"""A checkpoint onto a slow disk."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.storage import DiskBug

CASE = Case(
    text="one rank saves 8 MB after every third step onto a disk of 40 MB/s that writes at once",
    truth=Truth(RANK, ("CKPT_IO",), ("storage",)),
    disturbance=lambda: DiskBug("checkpoint", 40_000_000, is_synchronous=True, bytes=8_000_000),
    looks_like="a slow log; slow input",
)
