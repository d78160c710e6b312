"""Input that is not in the page cache."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.storage import DiskBug
from gauntlet.workloads import DDP_OWN_LOADER

CASE = Case(
    text="one rank itself reads 4 MB a sample, all of it from the disk each time, at 150 MB/s",
    truth=Truth(RANK, ("DATALOADER_IO",), ("storage",)),
    disturbance=lambda: DiskBug("read_file", 150_000_000, bytes=4_000_000),
    looks_like="a costly decode",
    workload=DDP_OWN_LOADER,
)
