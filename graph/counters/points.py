"""Read counters out of the public views `metrics` and `logs`: those that reasons ask for, of the hosts in question.

Owns the SQL and the bounds of what is read; times come out on the aligned clock. Pure counting is `movement`'s.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rootwalk.graph.columns import RankRow
from rootwalk.graph.counters.movement import Points
from rootwalk.graph.counters.other_points import read_others
from rootwalk.graph.counters.rule import ABSENT, Counter, Kind, Selection
from rootwalk.graph.counters.told import read_told
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import EVENTS

__all__ = ["Place", "Readings", "read_points"]

NS: Final = 1e9
# Points of producers that leave out what stands still.
_THINNED_SCOPE = "rootwalk"
# Hosts whose counters are read, culprits first: 64 hosts of 32 interfaces are some 500,000 points in two minutes.
MAX_HOSTS: Final = 256

_QUERY = """
SELECT name, host_id, rank, CAST(attributes AS TEXT), unix_ns, value, starts_with(coalesce(scope_name, ''), ?)
FROM metrics
WHERE name IN (SELECT unnest(?::TEXT[])) AND host_id IN (SELECT unnest(?::TEXT[]))
    AND (job = ? OR job IS NULL) AND (attempt = ? OR attempt IS NULL)
    AND unix_ns BETWEEN ? AND ? AND value IS NOT NULL
ORDER BY name, host_id, rank, 4, unix_ns, value
"""


_EVENTS = """
SELECT event_name, host_id, rank, CAST(attributes AS TEXT), unix_ns
FROM logs
WHERE event_name IN (SELECT unnest(?::TEXT[])) AND host_id IN (SELECT unnest(?::TEXT[]))
    AND (job = ? OR job IS NULL) AND (attempt = ? OR attempt IS NULL) AND unix_ns BETWEEN ? AND ?
ORDER BY event_name, host_id, rank, 4, unix_ns
"""
# An event is a sum that grows by one within so much time.
_MOMENT_S: Final = 1e-3

# Series that differ in these are counted from different moments on: of a library, when the rank has loaded it.
_BEGIN_APART: Final = (semconv.TRAINING_CUDA_LAYER,)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a counter counts: a host's id, a rank of it where it is the rank's, and a device where it has one."""

    host_id: str
    rank: int | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class _Series:
    name: str
    host_id: str
    rank: int | None
    attributes: Mapping[str, str]
    points: Points
    # Of another producer: the longest time between two points, its own name and the query that shows it.
    gap_s: float = 0.0
    told_by: str | None = None
    query: str | None = None

    def has(self, where: Sequence[Selection]) -> bool:
        """Return whether the attributes are among those that count."""
        return all(
            self.attributes.get(key, ABSENT) in values if values else key in self.attributes
            for key, values in where
        )


@dataclass(frozen=True, slots=True)
class Readings:
    """What was read."""

    series: tuple[_Series, ...]
    # UUIDs of GPUs, by host's id and PCI address.
    gpus: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def of(self, counter: Counter) -> dict[Place, list[Points]]:
        """Return the points of one counter by where it counts."""
        return self._chosen(counter, counter.where)

    def over(self, counter: Counter) -> dict[Place, list[Points]]:
        """Return the points of what a counter is a part of, likewise."""
        return self._chosen(counter, counter.over)

    def anything(self, counter: Counter) -> dict[Place, list[Points]]:
        """Return all points of a counter's metric that begin together, whatever they count, likewise."""
        return self._chosen(counter, [one for one in counter.where if one[0] in _BEGIN_APART])

    def devices_of(self, rank: int) -> frozenset[str]:
        """Return the GPUs that are told to be a rank's."""
        return frozenset(
            one.attributes[semconv.HW_ID]
            for one in self.series
            if one.rank == rank and semconv.HW_ID in one.attributes
        )

    def gap_s(self, counter: Counter) -> float:
        """Return the longest time between two points of a counter that others tell; 0 where ours do."""
        return max((one.gap_s for one in self.series if one.name == counter.signal), default=0.0)

    def other(self, counter: Counter, place: Place) -> tuple[str, str] | None:
        """Return the name and the query of what another producer tells at a place; None where it is ours."""
        for one in self.series:
            if one.told_by and one.query and self._is_at(one, counter, counter.where, place):
                return one.told_by, one.query
        return None

    def _is_at(
        self, one: _Series, counter: Counter, where: Sequence[Selection], place: Place
    ) -> bool:
        return one.name == counter.signal and one.has(where) and self._place(one, counter) == place

    def _chosen(self, counter: Counter, where: Sequence[Selection]) -> dict[Place, list[Points]]:
        found: dict[Place, list[Points]] = defaultdict(list)
        for one in self.series:
            # That nothing moves says something only where everything is read.
            is_partial = one.told_by is not None and counter.kind is Kind.STEADY
            if one.name == counter.signal and one.has(where) and not is_partial:
                found[self._place(one, counter)].append(one.points)
        return dict(found)

    def _place(self, one: _Series, counter: Counter) -> Place:
        device = None if counter.device is None else one.attributes.get(counter.device)
        # The kernel's log names GPUs by their addresses.
        device = self.gpus.get((one.host_id, device), device) if device else device
        return Place(one.host_id, one.rank if counter.is_of_rank else None, device)


def read_points(
    connection: Any,
    key: tuple[str, int],
    names: Collection[str],
    hosts: Sequence[str],
    span_unix_ns: tuple[int, int],
    clock: tuple[int, Mapping[str, float]],
    ranks: Sequence[RankRow] = (),
) -> Readings:
    """Return the points of some metrics, ours where a host has any, else those of other producers.

    Args:
        connection: An open store.
        key: Job and attempt.
        names: Metrics.
        hosts: Ids of hosts; those beyond `MAX_HOSTS` are left out.
        span_unix_ns: First and last moment.
        clock: Unix ns of the time 0 of the analysis, and how far each host's clock is ahead, s.
        ranks: Of the job; without any, other producers are not asked.
    """
    about = [sorted(names), list(hosts[:MAX_HOSTS]), *key, *span_unix_ns]
    rows = connection.execute(_QUERY, [_THINNED_SCOPE, *about]).fetchall()
    grouped: dict[tuple[str, str, int | None, str, bool], list[tuple[int, float]]] = defaultdict(
        list
    )
    for name, host, rank, attributes, unix_ns, value, is_thinned in rows:
        grouped[name, host, rank, attributes, is_thinned].append((unix_ns, value))
    origin_ns, offset_s_by_host = clock
    known: dict[str, dict[str, str]] = {}
    series = []
    for (name, host, rank, text, is_thinned), points in grouped.items():
        attributes = known.setdefault(text, _attributes(text))
        offset_s = offset_s_by_host.get(host, 0.0)
        # Points at one moment were sent twice: the last one counts.
        latest = dict(points)
        times = np.array([(ns - origin_ns) / NS - offset_s for ns in latest], dtype=np.float64)
        amounts = np.array(list(latest.values()), dtype=np.float64)
        series.append(_Series(name, host, rank, attributes, Points(times, amounts, is_thinned)))
    chosen = list(hosts[:MAX_HOSTS])
    for (name, host, rank), told in read_told(
        connection, key, names, chosen, span_unix_ns, clock
    ).items():
        series.append(_Series(name, host, rank, {}, told))
    if not EVENTS.keys().isdisjoint(names):
        series += _read_events(connection, about, clock)
    told_here = {(one.name, one.host_id) for one in series}
    near = [row for row in ranks if row.host_id in set(chosen)]
    for other in read_others(connection, key[0], names, near, span_unix_ns, clock):
        if (other.name, other.host_id) not in told_here:
            about_it = (other.attributes, other.points, other.gap_s, other.told_by, other.query)
            series.append(_Series(other.name, other.host_id, other.rank, *about_it))
    gpus = {
        (one.host_id, one.attributes[semconv.TRAINING_GPU_PCI_ADDRESS]): one.attributes[
            semconv.HW_ID
        ]
        for one in series
        if semconv.TRAINING_GPU_PCI_ADDRESS in one.attributes
    }
    return Readings(tuple(series), gpus)


def _read_events(
    connection: Any, about: list[Any], clock: tuple[int, Mapping[str, float]]
) -> list[_Series]:
    """Return events as sums of how many there have been."""
    grouped: dict[tuple[str, str, int | None, str], list[float]] = defaultdict(list)
    origin_ns, offset_s_by_host = clock
    for name, host, rank, attributes, unix_ns in connection.execute(_EVENTS, about).fetchall():
        time_s = (unix_ns - origin_ns) / NS - offset_s_by_host.get(host, 0.0)
        grouped[name, host, rank, attributes].append(time_s)
    series = []
    for (name, host, rank, text), times_s in grouped.items():
        ends = np.array(times_s)
        times = np.stack([ends - _MOMENT_S, ends], axis=1).ravel()
        counts = np.repeat(np.arange(ends.size + 1.0), 2)[1:-1]
        series.append(_Series(name, host, rank, _attributes(text), Points(times, counts, False)))
    return series


def _attributes(text: str) -> dict[str, str]:
    found = json.loads(text)
    return {name: str(value) for name, value in found.items()}
