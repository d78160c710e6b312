"""What the receiver has done, counted by signal and reason: kept and dropped add up to received."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

__all__ = ["IngestCounters", "IngestSnapshot"]


@dataclass(frozen=True, slots=True)
class IngestSnapshot:
    """Counts since the start.

    Attributes:
        accepted: Spans and metric points that were acknowledged, by signal.
        refused: Spans taken out of accepted requests, and whole requests refused for good, by (signal, reason).
        failed: Requests that the sender was told to send again, by (signal, reason).
        stored: Spans and points that the store took out of the journal.
        duplicates: Spans left out of the store because they were there.
    """

    accepted: dict[str, int]
    refused: dict[tuple[str, str], int]
    failed: dict[tuple[str, str], int]
    stored: int
    duplicates: int

    def render(self) -> str:
        """Return one line for the log."""
        parts = [f"accepted {signal} {count}" for signal, count in sorted(self.accepted.items())]
        parts += [f"refused {s} {r} {n}" for (s, r), n in sorted(self.refused.items())]
        parts += [f"failed {s} {r} {n}" for (s, r), n in sorted(self.failed.items())]
        return ", ".join([*parts, f"duplicates {self.duplicates}"])


class IngestCounters:
    """Counters that any thread may raise."""

    __slots__ = ("_accepted", "_duplicates", "_failed", "_lock", "_refused", "_stored")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accepted: Counter[str] = Counter()
        self._refused: Counter[tuple[str, str]] = Counter()
        self._failed: Counter[tuple[str, str]] = Counter()
        self._stored = 0
        self._duplicates = 0

    def count_accepted(self, signal: str, records: int) -> None:
        """Count acknowledged spans or points."""
        with self._lock:
            self._accepted[signal] += records

    def count_refused(self, signal: str, reason: str, count: int = 1) -> None:
        """Count what is refused for good."""
        with self._lock:
            self._refused[signal, reason] += count

    def count_failed(self, signal: str, reason: str) -> None:
        """Count a request that the sender should repeat."""
        with self._lock:
            self._failed[signal, reason] += 1

    def count_stored(self, records: int, duplicates: int) -> None:
        """Count spans and points that went from the journal to the store."""
        with self._lock:
            self._stored += records
            self._duplicates += duplicates

    def snapshot(self) -> IngestSnapshot:
        """Return the counts as they are now."""
        with self._lock:
            return IngestSnapshot(
                dict(self._accepted),
                dict(self._refused),
                dict(self._failed),
                self._stored,
                self._duplicates,
            )
