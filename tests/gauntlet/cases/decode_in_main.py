"""A costly decode in the main process."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.training import TrainingBug
from gauntlet.workloads import DDP_OWN_LOADER

CASE = Case(
    text="one rank, which loads by itself, unpacks a whole shard in Python for every sample",
    truth=Truth(RANK, ("DATALOADER_CPU",), ("application",)),
    disturbance=lambda: TrainingBug("decode", bytes=80_000),
    looks_like="more work; slow storage",
    workload=DDP_OWN_LOADER,
)
