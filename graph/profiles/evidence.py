"""Add to the causes of a window the frames that explain them, as evidence that reads the profiles.

Only causes that a stack can explain are asked, and only of the rank that is to blame, some of its peers in the window
and itself before it. Without a profile of the rank, or without anybody to compare with, nothing is added.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from rootwalk.graph.columns import JobData
from rootwalk.graph.counters.scene import Scene
from rootwalk.graph.dependencies import DependencyGraph, Edge
from rootwalk.graph.model import Evidence
from rootwalk.graph.profiles.comparison import KINDS_BY_REASON, Comparison, compare
from rootwalk.graph.profiles.difference import FrameExcess, find_excess
from rootwalk.graph.profiles.reading import TimeKind, has_profiles
from rootwalk.graph.reasons import FRAME_SIGNAL

__all__ = ["explain"]

# Before the name of the frame.
SIGNALS: Final = {kind: f"{FRAME_SIGNAL}{kind}" for kind in TimeKind}


def explain(
    connection: Any, scene: Scene, graph: DependencyGraph, evidence: tuple[Evidence, ...]
) -> tuple[Evidence, ...]:
    """Let the causes of a graph cite the frames that explain them, and return the evidence with these.

    Args:
        connection: An open store.
        scene: The window.
        graph: The dependency graph; edges of causes are replaced by such that cite more.
        evidence: Its rows.
    """
    ends = [end for end in graph.edges() if _asks(end)]
    if not ends or not has_profiles(connection):
        return evidence
    rows = {row.id: row for row in evidence}
    by_rank: dict[int, list[Edge]] = {}
    for end in ends:
        by_rank.setdefault(_rank(end), []).append(end)
    for rank, of_rank in sorted(by_rank.items()):
        _explain_rank(connection, scene, graph, rows, rank, of_rank)
    return tuple(rows[item] for item in sorted(rows))


def _asks(end: Edge) -> bool:
    attributes = end.payload.attributes
    is_cause = "cause" in attributes and attributes.get("rank") is not None
    return is_cause and str(attributes.get("reason")) in KINDS_BY_REASON


def _rank(end: Edge) -> int:
    return int(end.payload.attributes["rank"] or 0)


def _explain_rank(
    connection: Any,
    scene: Scene,
    graph: DependencyGraph,
    rows: dict[str, Evidence],
    rank: int,
    ends: list[Edge],
) -> None:
    """Add the frames of one rank's causes."""
    question, data = scene.question, scene.data
    positions = (range(question.start, question.stop), question.history)
    comparison = compare(connection, data, scene.clock, rank, positions, scene.offset_s_by_host)
    if comparison is None:
        return
    for end in ends:
        reason = str(end.payload.attributes["reason"])
        share_s = float(end.payload.attributes["share_s"] or 0.0)
        cited: list[str] = []
        for kind in KINDS_BY_REASON[reason]:
            if kind not in comparison.own:
                continue
            others, before = comparison.others(kind), comparison.before.get(kind)
            own, frames = comparison.own[kind], comparison.frames
            for found in find_excess(own, others, before, share_s, frames):
                name = f"profile.frame/{rank}/{reason}/{len(cited)}"
                query = _query(data, comparison, found)
                rows[name] = _row(name, kind, found, own.steps, query)
                cited.append(name)
        if cited:
            cites = dict.fromkeys((*end.payload.evidence_ids, *cited))
            payload = replace(end.payload, evidence_ids=tuple(cites))
            graph.add_edge(end.source, end.target, payload)


def _row(name: str, kind: TimeKind, found: FrameExcess, steps: float, query: str) -> Evidence:
    return Evidence(
        id=name,
        signal=f"{SIGNALS[kind]}: {found.label}",
        value=_rounded(found.value),
        unit="s",
        peers=_rounded(found.peers),
        history=_rounded(found.history),
        z=None,
        trace_id=None,
        span_id=None,
        query=query,
        attributes={"role": "context", "steps": round(steps, 3)},
    )


def _query(data: JobData, comparison: Comparison, found: FrameExcess) -> str:
    """Return the SQL that shows a frame's samples to a reader."""
    job, (first, last) = data.job.replace("'", "''"), comparison.span_ns
    ranks = (comparison.rank, *(comparison.peers if found.peers is not None else ()))
    listed = ", ".join(map(str, ranks))
    column, of_whom = "rank", f"job = '{job}' AND rank IN ({listed})"
    pids = sorted({row.pid for row in data.ranks if row.rank in ranks and row.pid is not None})
    if comparison.is_by_process and pids:
        column = "CAST(attributes ->> '$.\"process.pid\"' AS BIGINT) AS pid"
        of_whom = f"rank IS NULL AND pid IN ({', '.join(map(str, pids))})"
    where = f"{of_whom} AND unix_ns BETWEEN {first} AND {last}"
    function = found.frame.function.replace(";", ":").replace("'", "''")
    if function.isprintable() and not function.endswith("…"):
        where += f" AND contains(stack, '{function}')"
    columns = f"{column}, sample_type, unit, stack, sum(value) AS value"
    return f"SELECT {columns} FROM profile_samples WHERE {where} GROUP BY ALL ORDER BY value DESC"  # noqa: S608


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 9)
