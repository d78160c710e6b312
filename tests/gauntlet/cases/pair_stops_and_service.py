"""One rank is stopped, the other asks a slow service."""

from gauntlet.case import OTHER, RANK, Case, Truth
from gauntlet.faults.pairs import Both
from gauntlet.faults.peers import SlowService
from gauntlet.faults.signals import DutyCycle

CASE = Case(
    text="SIGSTOP to one rank again and again, and the other asks a slow service",
    truth=Truth(RANK, ("PROCESS_SUSPENDED",), ("operating_system",)),
    also=Truth(OTHER, ("EXTERNAL_SERVICE",), ("application",)),
    disturbance=lambda: Both(DutyCycle(), SlowService(0.08, who="other")),
    looks_like="one of both",
)
