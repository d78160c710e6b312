"""A rank is stopped for a moment."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.signals import DutyCycle

CASE = Case(
    text="SIGSTOP to one rank for 1 ms in every second",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: DutyCycle(0.001, 1.0, least_s=0.004),
    looks_like="a rank that is stopped again and again",
)
