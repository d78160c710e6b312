"""Input from a slow disk."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.storage import DiskBug

CASE = Case(
    text="one rank's loader worker reads 1 MB a sample from a disk limited to 20 MB/s",
    truth=Truth(RANK, ("DATALOADER_IO",), ("storage",)),
    disturbance=lambda: DiskBug("read_file", 20_000_000, bytes=1_000_000),
    looks_like="a costly decode; a slow log",
    is_quick=True,
)
