"""Input from a slow disk, without workers."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.storage import DiskBug
from gauntlet.workloads import DDP_OWN_LOADER

CASE = Case(
    text="one rank itself reads 1 MB a sample from a disk limited to 40 MB/s",
    truth=Truth(RANK, ("DATALOADER_IO",), ("storage",)),
    disturbance=lambda: DiskBug("read_file", 40_000_000, bytes=1_000_000),
    looks_like="a checkpoint; a slow log",
    workload=DDP_OWN_LOADER,
)
