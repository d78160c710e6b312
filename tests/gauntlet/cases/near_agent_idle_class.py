"""The agent computes where nobody else wants to."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.places import BusyAgent

CASE = Case(
    text="a thread in the agent's process computes on one rank's core, at the lowest priority",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: BusyAgent(0.02, "idle"),
    looks_like="an agent that takes a rank's core",
)
