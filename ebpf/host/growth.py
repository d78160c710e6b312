"""Sums of counters that belong to whatever control group a rank is in at the moment.

    group a   100    140                    the rank is moved from a to b at its third reading
    group b                 5000    5003
    sum         0     40      40      43    since the rank is watched

What a group had counted before the rank was in it is not the rank's. A group that is made again under its name begins
at 0, and what it has counted since then is.
"""

from __future__ import annotations

__all__ = ["Growth"]


class Growth:
    """What each of one rank's counters has grown by since it was first read."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], int] = {}
        self._totals: dict[str, int] = {}

    def take(self, counts_by_group: dict[str, dict[str, int]]) -> dict[str, int]:
        """Return the sums, by counter, of those that the groups have now.

        Args:
            counts_by_group: What each group that the rank is in has counted, by counter.
        """
        seen: dict[tuple[str, str], int] = {}
        names = set()
        for group, counts in counts_by_group.items():
            for name, count in counts.items():
                names.add(name)
                before = self._seen.get((group, name))
                if before is not None:
                    grown = count - before if count >= before else count
                    self._totals[name] = self._totals.get(name, 0) + grown
                seen[group, name] = count
        self._seen = seen
        return {name: self._totals.get(name, 0) for name in sorted(names)}
