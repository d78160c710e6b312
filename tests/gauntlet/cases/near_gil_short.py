"""A thread that needs the interpreter lock now and then."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="a thread of one rank computes in Python for 0.2 ms, rests for 50 ms, and so on",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: TrainingBug("hold_lock", least_s=0, burn="0.0002", pause="0.05"),
    looks_like="a thread that holds the interpreter lock",
)
