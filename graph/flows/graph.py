"""The dependency graph from communication records alone, and what its edges rest on.

job -slowed_by-> communicator -waits_for-> rank
job -slowed_by-> collective -transfers_over-> communicator
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rootwalk.graph.dependencies import DependencyGraph, node_id
from rootwalk.graph.flows.judge import FlowJudgement, LateRank, SlowTransfer
from rootwalk.graph.flows.matrix import SlowPath
from rootwalk.graph.flows.rules import SPENT
from rootwalk.graph.flows.store import FlowRecords
from rootwalk.graph.model import (
    Attributes,
    DataQuality,
    EdgeKind,
    EdgePayload,
    Evidence,
    NodePayload,
)
from rootwalk.graph.reasons import Reason, Signal
from rootwalk.instrumentation.semconv import COLLECTIVE_DEVICE_TIME

__all__ = ["FlowStory", "build_flow_graph", "host_of", "name_path", "path_nodes", "rounded"]

_DIGITS: Final = 9
# A device that computes so much longer than the others', of what its rank is late, is why.
MIN_DEVICE_RATIO: Final = 0.5
_MAGNITUDE: Final[Attributes] = {"role": "magnitude"}


@dataclass(frozen=True, slots=True)
class FlowStory:
    """What was read of a job, and what it says; `judgement` is None where nothing can be said.

    `bounds_unix_ns` are the window's. `is_sound` is whether a rank may be accused, or the job called healthy.
    `has_messages` is whether ranks also wait for messages, which their records tell less well. `is_measured` is whether
    the store has steps, of some of which devices told how long collectives took; `device_excess_s` is how much longer
    than the others' the devices of late ranks computed in a step, where profiles tell.
    """

    records: FlowRecords
    judgement: FlowJudgement | None
    quality: tuple[DataQuality, ...]
    bounds_unix_ns: tuple[int, int] | None
    is_sound: bool
    has_messages: bool
    is_measured: bool = False
    device_excess_s: Mapping[int, float] = field(default_factory=dict)

    def reason_of(self, late: LateRank) -> Reason:
        """Return what is known of why a rank is late: its device, or that nobody saw it."""
        excess_s = self.device_excess_s.get(late.rank, 0.0)
        return (
            Reason.UNKNOWN_GPU
            if excess_s >= MIN_DEVICE_RATIO * late.share_s
            else Reason.UNKNOWN_HOST
        )


def build_flow_graph(story: FlowStory) -> tuple[DependencyGraph, tuple[Evidence, ...]]:
    """Return the dependency graph of what slows a job, and what its edges rest on."""
    graph = DependencyGraph()
    evidence: list[Evidence] = []
    judgement = story.judgement
    if judgement is None or not story.is_sound:
        return graph, ()
    job = story.records.key.job
    job_node = node_id("job", job)
    graph.add_node(job_node, NodePayload("job", job, {}))
    for late in judgement.late:
        place = _communicator(graph, story, late.communicator)
        rank = node_id("rank", late.rank)
        host = host_of(story, late.rank)
        label = f"rank {late.rank}"
        graph.add_node(rank, NodePayload("rank", label, {"rank": late.rank, "host": host}))
        reason = story.reason_of(late)
        key = f"{reason}-{late.rank}"
        evidence.append(_late_evidence(story, late, key))
        share_s = rounded(late.share_s)
        graph.add_edge(job_node, place, EdgePayload(EdgeKind.SLOWED_BY, share_s, (), {}))
        found: Attributes = {"reason": str(reason), "share_s": share_s}
        payload = EdgePayload(EdgeKind.WAITS_FOR, share_s, (key,), found)
        graph.add_edge(place, rank, payload)
    for slow in judgement.transfers:
        place = _communicator(graph, story, slow.communicator)
        operation = node_id("collective", story.records.rows.communicators[slow.communicator])
        label = f"collectives of {story.records.labels[slow.communicator]}"
        graph.add_node(operation, NodePayload("collective", label, {}))
        key = f"{Reason.UNKNOWN_NET}-{slow.communicator}"
        evidence.append(_slow_evidence(story, slow, key))
        share_s = rounded(slow.share_s)
        graph.add_edge(job_node, operation, EdgePayload(EdgeKind.SLOWED_BY, share_s, (), {}))
        found = {"reason": str(Reason.UNKNOWN_NET), "share_s": share_s}
        payload = EdgePayload(EdgeKind.TRANSFERS_OVER, share_s, (key,), found)
        graph.add_edge(operation, place, payload)
    for path in judgement.paths:
        messages, target = path_nodes(path)
        graph.add_node(messages, NodePayload("collective", "messages", {}))
        kind = "path" if path.rank is None else "rank"
        graph.add_node(target, NodePayload(kind, name_path(path), {"rank": path.rank}))
        key = f"{Reason.UNKNOWN_NET}-{target}"
        evidence.append(_path_evidence(story, path, key))
        share_s = rounded(path.share_s)
        graph.add_edge(job_node, messages, EdgePayload(EdgeKind.SLOWED_BY, share_s, (), {}))
        found = {"reason": str(Reason.UNKNOWN_NET), "share_s": share_s}
        graph.add_edge(
            messages, target, EdgePayload(EdgeKind.TRANSFERS_OVER, share_s, (key,), found)
        )
    return graph, tuple(evidence)


def path_nodes(path: SlowPath) -> tuple[str, str]:
    """Return the node of a slow path's messages, and of what they go over."""
    ends = path.hosts or path.ranks
    target = node_id("path", *ends) if path.rank is None else node_id("rank", path.rank)
    return node_id("collective", f"messages-{target}"), target


def name_path(path: SlowPath) -> str:
    """Return what people call a slow path: an end, two hosts or two ranks."""
    if path.rank is not None:
        return f"rank {path.rank}"
    return " - ".join(path.hosts or [f"rank {rank}" for rank in path.ranks])


def _late_evidence(story: FlowStory, late: LateRank, key: str) -> Evidence:
    history = None if late.history_s is None else rounded(late.history_s)
    query = _query(story, f"rank = {late.rank}")
    return Evidence(
        *(key, SPENT, rounded(late.spent_s), "s", rounded(late.peers_s), history),
        *(None, None, None, query, dict(_MAGNITUDE)),
    )


def _slow_evidence(story: FlowStory, slow: SlowTransfer, key: str) -> Evidence:
    peers = None if slow.peers_s is None else rounded(slow.peers_s)
    history = None if slow.history_s is None else rounded(slow.history_s)
    name = story.records.rows.communicators[slow.communicator].replace("'", "''")
    query = _query(story, f"starts_with(communicator_id, '{name}')")
    return Evidence(
        *(key, str(Signal.TRANSFER), rounded(slow.transfer_s), "s", peers, history),
        *(None, None, None, query, dict(_MAGNITUDE)),
    )


def _path_evidence(story: FlowStory, path: SlowPath, key: str) -> Evidence:
    ranks = ", ".join(str(rank) for rank in path.ranks)
    query = _query(story, f"is_point_to_point AND rank IN ({ranks})")
    return Evidence(
        *(key, str(Signal.TRANSFER), rounded(path.transfer_s), "s", rounded(path.peers_s), None),
        *(None, None, None, query, dict(_MAGNITUDE)),
    )


def _query(story: FlowStory, condition: str) -> str:
    job = story.records.key.job.replace("'", "''")
    if story.is_measured:
        return (
            "SELECT step, rank, communicator_name, operation, sequence,"  # noqa: S608
            f" CAST(attributes ->> '$.\"{COLLECTIVE_DEVICE_TIME}\"' AS DOUBLE) AS device_s FROM span_records"
            f" WHERE job = '{job}' AND starts_with(name, 'collective.') AND {condition}"
            " AND device_s IS NOT NULL ORDER BY step, sequence"
        )
    return (
        "SELECT rank, communicator_name, operation, sequence, duration_ns FROM collectives"  # noqa: S608
        f" WHERE job = '{job}' AND {condition} ORDER BY end_unix_ns"
    )


def _communicator(graph: DependencyGraph, story: FlowStory, number: int) -> str:
    node = node_id("communicator", story.records.rows.communicators[number])
    graph.add_node(node, NodePayload("communicator", story.records.labels[number], {}))
    return node


def host_of(story: FlowStory, rank: int) -> str | None:
    """Return the name of a rank's host, None where nobody said."""
    row = next((row for row in story.records.ranks if row.rank == rank), None)
    return None if row is None else row.host_name or row.host_id


def rounded(value: float) -> float:
    """Return seconds without the digits that calculation adds."""
    return round(float(value), _DIGITS)
