"""A slow service outside the job."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.peers import SlowService

CASE = Case(
    text="one rank asks a service in every step that answers after 80 ms",
    truth=Truth(RANK, ("EXTERNAL_SERVICE",), ("application",)),
    disturbance=lambda: SlowService(0.08),
    looks_like="a slow network; a slow log",
)
