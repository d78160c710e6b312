"""Which values of readers are sent: those that are new, and once a minute those that stand still.

    value     0   0   0 ...  0   7   7        a network card has a hundred counters that never move: sent every 5 s,
    sent      x              x   x            they would cost the agent and the store more than everything that moves

What is left out is what was sent last, so sums and their growth lose nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable

from rootwalk.ebpf.reader import Measurement

__all__ = ["UnchangedFilter"]

# Stores and dashboards take a series that says nothing for some minutes for one that has ended.
REPEAT_S = 60.0

_Series = tuple[str, frozenset[tuple[str, object]]]


class UnchangedFilter:
    """Knows what was sent last, for each series that is still told.

    Args:
        clock_s: Monotonic clock, s.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._sent: dict[Hashable, dict[_Series, tuple[float, float]]] = {}

    def choose(self, group: Hashable, measurements: Iterable[Measurement]) -> list[Measurement]:
        """Return what is to be sent of one Resource.

        Args:
            group: Whose they are.
            measurements: All of its values now; a series that is not among them has ended.
        """
        now_s = self._clock_s()
        before = self._sent.get(group, {})
        sent: dict[_Series, tuple[float, float]] = {}
        chosen = []
        for one in measurements:
            series = one.metric, frozenset(one.attributes.items())
            value, sent_s = before.get(series, (None, now_s))
            if value != one.value or now_s - sent_s >= REPEAT_S:
                chosen.append(one)
                sent_s = now_s
            sent[series] = (one.value, sent_s)
        self._sent[group] = sent
        return chosen

    def forget(self, group: Hashable) -> None:
        """Forget a Resource that has ended."""
        self._sent.pop(group, None)

    def forget_all(self) -> None:
        """Forget everything: what was chosen last has not arrived."""
        self._sent.clear()
