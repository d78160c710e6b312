"""For how long a rank was throttled, from looks at its control groups twice a second.

    looks         |---------------|---------------|        the counters of cpu.stat grow by d1, d2
    asked                 [--------------)                 half of d1 and half of d2

A part without an answer (the rank was moved to another group, or a file could not be read) is not known, and so is the
time after the last look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rootwalk.ebpf.cgroups import (
    CgroupReader,
    GroupLevel,
    LevelCounts,
    Limit,
    find_tightest,
    read_counts,
    read_limit,
    stood_ns,
)

__all__ = ["RankThrottling", "ThrottlingTotals"]

# Ten minutes of looks: an endpoint that is away for longer finds steps whose throttling is not known.
MAX_LOOKS = 1200


class _Look(NamedTuple):
    """Time between two looks, ns, and for how much of it the rank was throttled; None: not known."""

    start_ns: int
    end_ns: int
    throttled_ns: int | None


@dataclass(frozen=True, slots=True)
class ThrottlingTotals:
    """What a rank's metrics tell; the counts never fall, whatever group it is in.

    Attributes:
        throttled_ns: For how long it was throttled, ns of the clock.
        throttled_periods: Enforcement periods in which one of its groups had to stop.
        periods: Enforcement periods of its groups.
        limit: The tightest limit now; None without one.
    """

    throttled_ns: int
    throttled_periods: int
    periods: int
    limit: Limit | None


class RankThrottling:
    """The recent past of one rank's control groups.

    Args:
        pid: The rank's process.
        reader: Finds its groups.
    """

    def __init__(self, pid: int, reader: CgroupReader) -> None:
        self._pid = pid
        self._reader = reader
        self._levels: list[GroupLevel] | None = None
        self._counts: list[LevelCounts | None] = []
        self._at_ns: int | None = None
        self._looks: deque[_Look] = deque(maxlen=MAX_LOOKS)
        self._throttled_ns = self._throttled_periods = self._periods = 0

    def look(self, clock_ns: Callable[[], int]) -> None:
        """Read the counters now.

        Args:
            clock_ns: Monotonic clock, ns; read after the counters, so that they cover everything before it.
        """
        levels = self._reader.levels(self._pid)
        counts = [read_counts(level) for level in levels or []]
        now_ns = clock_ns()
        if self._at_ns is not None:
            is_same = levels is not None and levels == self._levels
            throttled_ns = (
                self._difference_ns(levels or [], counts, now_ns - self._at_ns) if is_same else None
            )
            self._looks.append(_Look(self._at_ns, now_ns, throttled_ns))
        self._levels, self._counts, self._at_ns = levels, counts, now_ns

    def throttled_ns(self, start_ns: int, end_ns: int) -> int | None:
        """Return for how long the rank was throttled in an interval, ns; None when a part of it is not known."""
        if not self._looks or start_ns < self._looks[0].start_ns or end_ns > self._looks[-1].end_ns:
            return None
        total = 0.0
        for look in reversed(self._looks):
            if look.end_ns <= start_ns:
                break
            inside_ns = min(look.end_ns, end_ns) - max(look.start_ns, start_ns)
            if inside_ns <= 0:
                continue
            if look.throttled_ns is None:
                return None
            total += look.throttled_ns * inside_ns / (look.end_ns - look.start_ns)
        return min(round(total), end_ns - start_ns)

    def totals(self) -> ThrottlingTotals | None:
        """Return what the rank's metrics tell; None when its groups cannot be seen."""
        if self._levels is None:
            return None
        limit = find_tightest(self._levels)
        return ThrottlingTotals(self._throttled_ns, self._throttled_periods, self._periods, limit)

    def _difference_ns(
        self, levels: Sequence[GroupLevel], counts: Sequence[LevelCounts | None], passed_ns: int
    ) -> int | None:
        """Add what was counted since the last look to the totals; return for how long the rank stood, ns."""
        total_ns = 0
        for level, before, now in zip(levels, self._counts, counts, strict=True):
            if now is None and before is None:
                continue  # a group that is never limited, such as the topmost of version 2
            if now is None or before is None or now.periods < before.periods:
                return None  # made again under the same name, or the files came or went
            grown = LevelCounts(
                now.periods - before.periods,
                now.throttled_periods - before.throttled_periods,
                now.throttled_ns - before.throttled_ns,
            )
            self._periods += grown.periods
            self._throttled_periods += grown.throttled_periods
            if grown.throttled_ns > 0:
                total_ns += stood_ns(grown, read_limit(level))
        throttled_ns = min(total_ns, passed_ns)
        self._throttled_ns += throttled_ns
        return throttled_ns
