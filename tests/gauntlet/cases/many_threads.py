"""More threads than cores."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="one rank computes with 16 threads on one core",
    truth=Truth(RANK, ("THREAD_OVERSUBSCRIPTION",), ("operating_system",)),
    disturbance=lambda: TrainingBug("threads", least_s=0, count=16),
    looks_like="contention; the interpreter lock",
)
