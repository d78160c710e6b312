"""What a process left that has become another program by `exec`: rings that nobody will write to any more.

    pid 4411: python train.py (ring A, attempt 0) --exec--> python train.py (ring B, attempt 1)

An exec keeps the process, and runs no exit handlers: without this, ring A would look alive for as long as B trains, and
B's first steps would carry the ids of A's. So the new program closes what the old one left, and counts as a new attempt
of the job, like a restart by the launcher. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.instrumentation.identity import Identity, own_start_ticks
from rootwalk.instrumentation.shared_ring import RingReader, ring_directory

__all__ = ["Predecessors", "take_over"]


class Predecessors:
    """The rings of the programs that this process was before.

    Attributes:
        identity: Who this process is now.
        unsent: Rings that an exporter of this process has to send, oldest first.
    """

    def __init__(self, identity: Identity, unsent: list[Path]) -> None:
        self.identity = identity
        self.unsent = unsent


def take_over(identity: Identity, *, is_sending: bool) -> Predecessors:
    """Close the rings that an earlier program of this process left open.

    Args:
        identity: Who this process is by its environment.
        is_sending: Whether this process sends by itself when no agent does.
    """
    attempts = [identity.attempt]
    unsent: list[Path] = []
    start_ticks = own_start_ticks()
    for path in sorted(ring_directory().glob(f"{os.getpid()}-*.ring")):
        with contextlib.suppress(DecodeError, OSError):
            reader = RingReader(path)
            try:
                is_own = (reader.start_ticks, reader.identity.host_id) == (
                    start_ticks,
                    identity.host_id,
                )
                if not is_own or reader.closed:
                    continue  # of another process with this number, or ended by itself
                if reader.identity.job == identity.job:
                    attempts.append(reader.identity.attempt + 1)
                reader.supersede()
                if is_sending:
                    unsent.append(path)
                elif not reader.was_read and not os.environ.get("ROOTWALK_KEEP_RING"):
                    reader.unlink()  # nobody was ever here to read it
            finally:
                reader.close()
    return Predecessors(replace(identity, attempt=max(attempts)), unsent)
