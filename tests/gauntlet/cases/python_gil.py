"""A thread holds the interpreter lock."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.training import TrainingBug

# The thread is not timed: the job's own clock alone decides whether it took effect.
CASE = Case(
    text="a thread of one rank computes in Python for 20 ms, rests for 20 ms, and so on",
    truth=Truth(RANK, ("PY_GIL",), ("application",)),
    disturbance=lambda: TrainingBug("hold_lock", least_s=0),
    looks_like="contention by another process; more work",
)
