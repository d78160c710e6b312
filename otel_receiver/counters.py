"""What the receiver has done, counted by signal and reason: kept and dropped add up to received."""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Final

from rootwalk.otel_receiver.answers import Result

__all__ = ["LATENCY_BOUNDS_S", "IngestCounters", "IngestSnapshot", "Latency"]

# Upper bounds of the latency histogram; a commit on a good disk takes 1 ms, the last is the timeout of most exporters.
LATENCY_BOUNDS_S: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
# Stands for the signal of a request that names none: an unknown path or method.
NO_SIGNAL: Final = "none"


@dataclass(frozen=True, slots=True)
class Latency:
    """Time from the first byte that was read to the answer, of one signal over one transport.

    Attributes:
        buckets: Requests up to each of `LATENCY_BOUNDS_S`, and above the last.
        sum_s: Of all of them.
    """

    buckets: tuple[int, ...]
    sum_s: float


@dataclass(frozen=True, slots=True)
class IngestSnapshot:
    """Counts since the start.

    Attributes:
        accepted: Records (spans, points, log records, samples) that were acknowledged, by signal.
        refused: Records taken out of accepted requests, and whole requests refused for good, by (signal, reason).
        failed: Requests that the sender was told to send again, by (signal, reason).
        duplicates: Spans left out of the store because they were there.
        refused_records: Records that were taken out of accepted requests, by signal.
        failed_records: Records of requests that were sound and could not be made durable, by signal.
        requests: All requests, by (signal, transport, result).
        latencies: Of all requests, by (signal, transport).
    """

    accepted: dict[str, int]
    refused: dict[tuple[str, str], int]
    failed: dict[tuple[str, str], int]
    duplicates: int
    refused_records: dict[str, int]
    failed_records: dict[str, int]
    requests: dict[tuple[str, str, Result], int]
    latencies: dict[tuple[str, str], Latency]

    def render(self) -> str:
        """Return one line for the log."""
        parts = [f"accepted {signal} {count}" for signal, count in sorted(self.accepted.items())]
        parts += [f"refused {s} {r} {n}" for (s, r), n in sorted(self.refused.items())]
        parts += [f"failed {s} {r} {n}" for (s, r), n in sorted(self.failed.items())]
        return ", ".join([*parts, f"duplicates {self.duplicates}"])


class IngestCounters:
    """Counters that any thread may raise."""

    __slots__ = (
        "_accepted",
        "_duplicates",
        "_failed",
        "_failed_records",
        "_latencies",
        "_lock",
        "_refused",
        "_refused_records",
        "_requests",
        "_sums_s",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accepted: Counter[str] = Counter()
        self._refused: Counter[tuple[str, str]] = Counter()
        self._failed: Counter[tuple[str, str]] = Counter()
        self._refused_records: Counter[str] = Counter()
        self._failed_records: Counter[str] = Counter()
        self._requests: Counter[tuple[str, str, Result]] = Counter()
        self._latencies: dict[tuple[str, str], list[int]] = {}
        self._sums_s: dict[tuple[str, str], float] = {}
        self._duplicates = 0

    def count_accepted(self, signal: str, records: int) -> None:
        """Count acknowledged records."""
        with self._lock:
            self._accepted[signal] += records

    def count_refused_records(self, signal: str, reason: str, records: int) -> None:
        """Count records that were taken out of an accepted request."""
        with self._lock:
            self._refused[signal, reason] += records
            self._refused_records[signal] += records

    def count_failed_records(self, signal: str, records: int) -> None:
        """Count the records of a sound request that could not be made durable."""
        with self._lock:
            self._failed_records[signal] += records

    def count_request(self, signal: str, transport: str, result: Result, duration_s: float) -> None:
        """Count one request and how long it took."""
        with self._lock:
            self._requests[signal, transport, result] += 1
            if result.is_retryable:
                self._failed[signal, result] += 1
            elif result is not Result.DURABLE:
                self._refused[signal, result] += 1
            route = signal, transport
            buckets = self._latencies.setdefault(route, [0] * (len(LATENCY_BOUNDS_S) + 1))
            buckets[bisect.bisect_left(LATENCY_BOUNDS_S, duration_s)] += 1
            self._sums_s[route] = self._sums_s.get(route, 0.0) + duration_s

    def count_lost_request(self, reason: str) -> None:
        """Count a request that names no signal."""
        with self._lock:
            self._refused[NO_SIGNAL, reason] += 1

    def count_duplicates(self, spans: int) -> None:
        """Count spans that came again and were left out of the store."""
        with self._lock:
            self._duplicates += spans

    def snapshot(self) -> IngestSnapshot:
        """Return the counts as they are now."""
        with self._lock:
            latencies = {
                route: Latency(tuple(buckets), self._sums_s[route])
                for route, buckets in self._latencies.items()
            }
            return IngestSnapshot(
                dict(self._accepted),
                dict(self._refused),
                dict(self._failed),
                self._duplicates,
                dict(self._refused_records),
                dict(self._failed_records),
                dict(self._requests),
                latencies,
            )
