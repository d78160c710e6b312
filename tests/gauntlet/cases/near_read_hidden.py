"""Input from a slow disk, read ahead of time."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.storage import DiskBug

CASE = Case(
    text="one rank's loader worker reads 0.03 MB a sample from a disk limited to 20 MB/s, long before it is needed",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: DiskBug("read_file", 20_000_000, bytes=30_000, least_s=0.05),
    looks_like="input from a slow disk",
)
