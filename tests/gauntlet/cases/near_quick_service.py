"""A quick service outside the job."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.peers import SlowService

CASE = Case(
    text="one rank asks a service in every step that answers at once",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: SlowService(0.0, least_s=0.001),
    looks_like="a slow service",
)
