"""A memory limit that is met again and again."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.memory import MemoryLimit

CASE = Case(
    text="one rank writes 216 MB a step to a file, and a limit leaves room for an eighth of the file only",
    truth=Truth(RANK, ("MEM_RECLAIM",), ("operating_system",)),
    disturbance=lambda: MemoryLimit(
        "write_much",
        1.0,
        "events",
        100,
        room_bytes=-1_500_000_000,
        part=216_000_000,
        bytes=1_728_000_000,
    ),
    looks_like="a slow disk; a leak",
)
