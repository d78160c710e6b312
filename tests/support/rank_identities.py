"""Who a rank is, for tests that need nothing but its number."""

from __future__ import annotations

from rootwalk.instrumentation.identity import Identity


def identity(rank: int, job: str = "job", pid: int = 1) -> Identity:
    """Return a rank of a job of eight."""
    return Identity(job, 0, rank, rank, 8, pid, "host", "host", "train")
