"""One rank does more, weights sharded."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.training import TrainingBug
from gauntlet.workloads import FSDP_OWN_LOADER

CASE = Case(
    text="one rank loads by itself and unpacks a shard in Python for every sample; weights are sharded",
    truth=Truth(RANK, ("DATALOADER_CPU",), ("application",)),
    disturbance=lambda: TrainingBug("decode", bytes=80_000),
    looks_like="a slow network",
    workload=FSDP_OWN_LOADER,
)
