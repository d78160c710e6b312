"""What is acknowledged and not stored yet, held against a bound: senders faster than the store wait, not the disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["DEFAULT_JOURNAL_BYTES", "MIN_JOURNAL_BYTES", "Backlog"]

# A minute of what the compiled decoder stores; also what a stop, or a start after kill -9, has to store.
DEFAULT_JOURNAL_BYTES: Final = 2 * 1024**3
# One request at OTLP's limit, and as much again for the others.
MIN_JOURNAL_BYTES: Final = 128 * 1024**2
# The journal's files are looked at so often; the fastest senders bring 5 MiB in that time.
SAMPLE_INTERVAL_S: Final = 0.05


class Backlog:
    """Says whether the journal is full; for one thread.

    Args:
        limit_bytes: What may wait to be stored. What is on its way when it is reached still goes in.
        read_waiting_bytes: How much of the journal is not stored yet.
        clock: Monotonic seconds; another one in tests.
    """

    def __init__(
        self,
        limit_bytes: int,
        read_waiting_bytes: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._read_waiting_bytes = read_waiting_bytes
        self._clock = clock
        self._waiting_bytes = 0
        self._sampled_s = -SAMPLE_INTERVAL_S

    def waiting_bytes(self) -> int:
        """Return how much of the journal is not stored yet."""
        return self._read_waiting_bytes()

    def is_full(self) -> bool:
        """Say whether as much waits as may, by a look not older than the sample interval."""
        now_s = self._clock()
        if now_s - self._sampled_s >= SAMPLE_INTERVAL_S:
            self._sampled_s = now_s
            self._waiting_bytes = self._read_waiting_bytes()
        return self._waiting_bytes >= self.limit_bytes
