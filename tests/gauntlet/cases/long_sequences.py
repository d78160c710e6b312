"""More work that moves from rank to rank."""

from gauntlet.case import NO_RANK, Case, Truth
from gauntlet.faults.training import TrainingBug

CASE = Case(
    text="in every step one rank, drawn by lot, has three times the forward work",
    truth=Truth(
        NO_RANK,
        (
            "SEQ_IMBALANCE",
            "WORK_IMBALANCE",
        ),
        ("application",),
    ),
    disturbance=lambda: TrainingBug("work", who="all", turns="yes", times=3),
    looks_like="a fault of one rank",
)
