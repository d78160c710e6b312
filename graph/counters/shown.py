"""How a reader is shown what a counter told: its unit, and the SQL for its points."""

from __future__ import annotations

from rootwalk.graph.counters.points import Place
from rootwalk.graph.counters.rule import ABSENT, Counter
from rootwalk.graph.counters.scene import Scene
from rootwalk.graph.counters.told import TOLD_SIGNALS, told_query, told_unit
from rootwalk.instrumentation import semconv

__all__ = ["points_query", "unit_of"]


def unit_of(signal: str) -> str:
    """Return the unit of what a rule asks for."""
    if signal in TOLD_SIGNALS:
        return told_unit(signal)
    return semconv.METRICS[signal].unit if signal in semconv.METRICS else "1"


def points_query(scene: Scene, counter: Counter, place: Place, span: tuple[int, int]) -> str:
    """Return the SQL that shows the counter's points to a reader."""
    signal = str(counter.signal)
    if signal in TOLD_SIGNALS and place.rank is not None:
        return told_query(signal, scene.data.job, place.rank, span)
    host = place.host_id.replace("'", "''")
    rank = "" if place.rank is None else f" AND rank = {place.rank}"
    where = f"name = '{signal}' AND host_id = '{host}'{rank} AND unix_ns BETWEEN {span[0]} AND {span[1]}"
    where += "".join(_only(*one) for one in counter.where if signal in semconv.METRICS)
    columns, view = "unix_ns, rank, attributes, value", "metrics"
    if signal in semconv.EVENTS:
        where, columns, view = f"event_{where}", "unix_ns, rank, attributes, body", "logs"
    return " ".join(("SELECT", columns, "FROM", view, "WHERE", where, "ORDER BY unix_ns"))


def _only(attribute: str, values: frozenset[str]) -> str:
    """Return the condition that points are among those that count; nothing where any are."""
    listed = ", ".join(f"'{value}'" for value in sorted(values))
    told = f"coalesce(attributes ->> '$.\"{attribute}\"', '{ABSENT}')"
    return f" AND {told} IN ({listed})" if values else ""
