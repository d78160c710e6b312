"""A memory limit that is not met."""

from gauntlet.case import ACCUSE_NOBODY, Case
from gauntlet.faults.memory import MemoryLimit

CASE = Case(
    text="one rank touches 1 MB a step under a limit that leaves room",
    truth=ACCUSE_NOBODY,
    disturbance=lambda: MemoryLimit(
        "touch_memory",
        1.0,
        "events",
        0,
        # Twice what the bug takes and does not have when the limit is set: half as much again of what was used was once
        # 9 MB too little.
        room_bytes=400_000_000,
        bytes=200_000_000,
        part=1_000_000,
    ),
    looks_like="a memory limit that is met",
)
