"""Input from a slow file system in user space."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.storage import FuseBug

CASE = Case(
    text="one rank's loader worker reads 0.5 MB a sample from a file system in user space that answers 8 ms late",
    truth=Truth(RANK, ("DATALOADER_IO",), ("storage",)),
    disturbance=lambda: FuseBug(0.008, bytes=500_000),
    looks_like="a costly decode; a slow service",
)
