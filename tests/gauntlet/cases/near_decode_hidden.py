"""A decode that the loader does in time."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="one rank's loader worker unpacks a small shard in Python for every sample, before it is needed",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: TrainingBug("decode", bytes=2_000, least_s=0.1),
    looks_like="a costly decode in the worker",
)
