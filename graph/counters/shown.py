"""How a reader is shown what a counter told: its unit, and the SQL for its points."""

from __future__ import annotations

from rootwalk.graph.counters.points import Place
from rootwalk.graph.counters.scene import Scene
from rootwalk.graph.counters.told import TOLD_SIGNALS, told_query, told_unit
from rootwalk.instrumentation import semconv

__all__ = ["points_query", "unit_of"]


def unit_of(signal: str) -> str:
    """Return the unit of what a rule asks for."""
    if signal in TOLD_SIGNALS:
        return told_unit(signal)
    return semconv.METRICS[signal].unit if signal in semconv.METRICS else "1"


def points_query(scene: Scene, signal: str, place: Place, span: tuple[int, int]) -> str:
    """Return the SQL that shows the counter's points to a reader."""
    if signal in TOLD_SIGNALS and place.rank is not None:
        return told_query(signal, scene.data.job, place.rank, span)
    host = place.host_id.replace("'", "''")
    rank = "" if place.rank is None else f" AND rank = {place.rank}"
    where = f"name = '{signal}' AND host_id = '{host}'{rank} AND unix_ns BETWEEN {span[0]} AND {span[1]}"
    columns, view = "unix_ns, rank, attributes, value", "metrics"
    if signal in semconv.EVENTS:
        where, columns, view = f"event_{where}", "unix_ns, rank, attributes, body", "logs"
    return " ".join(("SELECT", columns, "FROM", view, "WHERE", where, "ORDER BY unix_ns"))
