"""A memory limit, and swap."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.memory import MemoryLimit

CASE = Case(
    text="one rank touches 48 MB of its memory a step, and a limit sends two fifths of it to zram",
    truth=Truth(RANK, ("SWAP",), ("operating_system",)),
    disturbance=lambda: MemoryLimit(
        "touch_memory", 0.6, "events", 100, swap=True, bytes=600_000_000, part=48_000_000
    ),
    looks_like="more work; reclaim without swap",
)
