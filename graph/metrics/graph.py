"""The dependency graph from metrics alone, and what its edges rest on.

job -slowed_by-> host -slowed_by-> gpu, cpu, memory, disk or nic

The first edge rests on what measures the work, the second on what is not as it is elsewhere. Neither has seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Final

from rootwalk.graph.dependencies import DependencyGraph, node_id
from rootwalk.graph.metrics.judge import Cause, MetricJudgement, Reading
from rootwalk.graph.metrics.rules import RULES
from rootwalk.graph.metrics.table import MetricCase
from rootwalk.graph.metrics.words import subject_label
from rootwalk.graph.model import (
    Attributes,
    DataQuality,
    EdgeKind,
    EdgePayload,
    Evidence,
    NodePayload,
)

__all__ = ["MetricStory", "build_metric_graph", "evidence_ids"]

_DIGITS: Final = 6
# Role of a row of evidence.
_SYMPTOM: Final[Attributes] = {"role": "context"}
_CONDITION: Final[Attributes] = {"role": "magnitude"}


@dataclass(frozen=True, slots=True)
class MetricStory:
    """What was read of a job, and what it says; `judgement` is None where there is too little of it."""

    case: MetricCase
    judgement: MetricJudgement | None
    quality: tuple[DataQuality, ...]

    @property
    def bounds_unix_ns(self) -> tuple[int, int]:
        """First and last moment of the window; of all that was read where there is none."""
        case, judged = self.case, self.judgement
        bins = next((q.values.shape[1] for q in case.quantities.values()), 0)
        first, stop = (0, bins) if judged is None else (judged.start, judged.stop)
        begin = case.start_unix_ns
        return begin + first * case.width_ns, begin + stop * case.width_ns


def build_metric_graph(story: MetricStory) -> tuple[DependencyGraph, tuple[Evidence, ...]]:
    """Return the dependency graph of what slows a job as far as metrics correlate, and what its edges rest on."""
    graph = DependencyGraph()
    judgement = story.judgement
    if judgement is None or not judgement.causes or not story.case.is_sound:
        return graph, ()
    evidence = {row.id: row for row in [_symptom(story, judgement)]}
    job = story.case.key.job
    job_node = node_id("job", job)
    graph.add_node(job_node, NodePayload("job", job, {}))
    for cause in judgement.causes:
        host = node_id("host", cause.host)
        graph.add_node(host, NodePayload("host", cause.host, {}))
        rule = RULES[cause.readings[0].rule]
        label = subject_label(rule.component, cause.host, cause.device)
        graph.add_node(cause.node, NodePayload(rule.component, label, {"host": cause.host}))
        rows = [_condition(story, cause, reading) for reading in cause.readings]
        evidence |= {row.id: row for row in rows}
        symptom_id, *ids = evidence_ids(judgement, cause)
        walked: Attributes = {"page_rank_share": round(cause.share, _DIGITS), "correlation": True}
        graph.add_edge(job_node, host, EdgePayload(EdgeKind.SLOWED_BY, None, (symptom_id,), {}))
        graph.add_edge(host, cause.node, EdgePayload(EdgeKind.SLOWED_BY, None, tuple(ids), walked))
    return graph, tuple(evidence.values())


def evidence_ids(judgement: MetricJudgement, cause: Cause) -> list[str]:
    """Return the ids of the rows that a cause rests on: the symptom's, then its own, the reason's first."""
    symptom = f"symptom-{judgement.symptoms[0].rule}"
    return [symptom, *(f"{cause.node}-{reading.rule}" for reading in cause.readings)]


def _symptom(story: MetricStory, judgement: MetricJudgement) -> Evidence:
    """Return how the work changed, the median of the places that show it first."""
    first = judgement.symptoms[0]
    own = [item for item in judgement.symptoms if item.rule == first.rule]

    def middle(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return round(float(median(known)), _DIGITS) if known else None

    peers = None if judgement.episode is not None else middle([item.peers for item in own])
    return Evidence(
        id=f"symptom-{first.rule}",
        signal=first.metric,
        value=middle([item.value for item in own]),
        unit=RULES[first.rule].unit,
        peers=peers,
        history=middle([item.history for item in own]),
        z=None,
        trace_id=None,
        span_id=None,
        query=_query(story, first.metric, ""),
        attributes=dict(_SYMPTOM),
    )


def _condition(story: MetricStory, cause: Cause, reading: Reading) -> Evidence:
    peers, history = (
        None if value is None else round(value, _DIGITS)
        for value in (reading.peers, reading.history)
    )
    return Evidence(
        id=f"{cause.node}-{reading.rule}",
        signal=reading.metric,
        value=round(reading.value, _DIGITS),
        unit=RULES[reading.rule].unit,
        peers=peers,
        history=history,
        z=round(reading.z, 3),
        trace_id=None,
        span_id=None,
        query=_query(story, reading.metric, reading.place.device or reading.part),
        attributes=dict(_CONDITION),
    )


def _query(story: MetricStory, metric: str, label: str) -> str:
    begin, end = story.bounds_unix_ns
    about = ""
    if label:
        text = label.replace("'", "''")
        about = f" AND contains(CAST(attributes AS TEXT), '{text}')"
    return (
        "SELECT unix_ns, value, attributes FROM metrics"  # noqa: S608
        f" WHERE name = '{metric}' AND unix_ns BETWEEN {begin} AND {end}{about} ORDER BY unix_ns"
    )
