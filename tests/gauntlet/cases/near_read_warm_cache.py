"""Input that is in the page cache."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.storage import DiskBug
from gauntlet.workloads import DDP_OWN_LOADER

CASE = Case(
    text="one rank itself reads 0.1 MB a sample of a slow disk, all of it from the page cache after a while",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: DiskBug(
        "read_file", 20_000_000, bytes=100_000, within=1_000_000, keep="yes", least_s=0.002
    ),
    looks_like="input from a slow disk",
    workload=DDP_OWN_LOADER,
)
