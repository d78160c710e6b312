"""A loader worker is killed for its memory."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.memory import MemoryLimit

CASE = Case(
    text="one rank's loader worker takes 20 MB more with every sample until the kernel kills it",
    truth=Truth(RANK, ("OOM_KILL",), ("operating_system",), kind=None),
    disturbance=lambda: MemoryLimit(
        "take_memory", 1.0, "kills", 1, room_bytes=200_000_000, bytes=20_000_000
    ),
    looks_like="a worker that crashes; a rank that ends",
    may_fail=True,
)
