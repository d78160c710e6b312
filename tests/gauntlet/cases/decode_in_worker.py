"""A costly decode in the loader's worker."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="one rank's loader worker unpacks a whole shard in Python for every sample",
    truth=Truth(RANK, ("DATALOADER_CPU",), ("application",)),
    disturbance=lambda: TrainingBug("decode"),
    looks_like="slow storage; contention with its own worker",
    is_quick=True,
)
