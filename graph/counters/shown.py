"""How a reader is shown what a counter told: a row of evidence with its unit, and the SQL for its points."""

from __future__ import annotations

from rootwalk.graph.counters.movement import StepSpans
from rootwalk.graph.counters.points import Place
from rootwalk.graph.counters.rule import ABSENT, Counter, CounterRule, Kind
from rootwalk.graph.counters.scene import Scene
from rootwalk.graph.counters.seen import Seen
from rootwalk.graph.counters.told import TOLD_SIGNALS, told_query, told_unit
from rootwalk.graph.model import Evidence
from rootwalk.instrumentation import semconv

__all__ = ["add_row", "points_query"]


def _unit_of(signal: str) -> str:
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


def add_row(
    scene: Scene, rows: dict[str, Evidence], rule: CounterRule, seen: Seen, spans: StepSpans
) -> str:
    """Add the evidence of one counter; return its id."""
    movement, place, signal = seen.movement, seen.place, str(seen.counter.signal)
    rank = "" if place.rank is None else f"/rank{place.rank}"
    device = "" if place.device is None else f"/{place.device}"
    name = f"{signal}/{scene.host_name(place.host_id)}{device}{rank}"
    told_apart = (semconv.TRAINING_RDMA_EVENT, semconv.TRAINING_CUDA_CALL_KIND)
    ways = dict(seen.counter.where).get(semconv.TRAINING_NCCL_TRANSPORT, frozenset())
    if ways and seen.counter.kind is Kind.STEADY:
        # Beside that of the ways that moved, and after it.
        name += f"/{min(ways)}"
    if any(key in told_apart for key, _ in seen.counter.where):
        layers = dict(seen.counter.where).get(semconv.TRAINING_CUDA_LAYER, frozenset())
        name += "/".join(["", str(rule.reason), *sorted(layers)])
    seconds = seen.cost.seconds
    rows[name] = Evidence(
        id=name,
        signal=signal,
        value=_rounded(movement.value),
        unit=_unit_of(signal),
        peers=None if seen.peers is None else _rounded(seen.peers),
        history=_rounded(movement.history),
        z=_rounded(movement.z),
        trace_id=None,
        span_id=None,
        query=seen.other[1]
        if seen.other
        else points_query(scene, seen.counter, place, scene.unix_span(spans)),
        attributes={
            **({"told_by": seen.other[0]} if seen.other else {}),
            "overlap": _rounded(movement.overlap),
            "dose": None if movement.dose is None else _rounded(movement.dose),
            "explained_s": None if seconds is None else _rounded(seconds),
            "is_bound": seen.cost.is_bound,
        },
    )
    return name


def _rounded(value: float) -> float:
    return round(float(value), 9)
