"""Let the chains of a graph go on from a rank to its device, where the store has profiles of that rank.

What stands on the rank's path longer than before, or than on its peers' (`comparison`), is named with its seconds: the
operation that the device ran, or, where its stream had run dry, what the host did instead of launching. A wait for
input is only measured: its chain names the loading already.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from rootwalk.graph.counters.scene import Scene
from rootwalk.graph.dependencies import DependencyGraph, Edge, node_id
from rootwalk.graph.device.beyond import GOES_ON, ON_PATH
from rootwalk.graph.device.comparison import Compared, Standing, compare_kind, find_standing
from rootwalk.graph.device.reading import TIME_OF_KIND, DevicePath, paths_query, read_paths
from rootwalk.graph.model import EdgeKind, EdgePayload, Evidence, NodePayload
from rootwalk.graph.reasons import OPERATION_SIGNAL, Signal
from rootwalk.instrumentation.semconv import TrainingDevicePathKind as Kind

__all__ = ["follow_device"]

# What stands on the path explains a cause from this part of its seconds on; less is no way to go on.
MIN_EXPLAINED: Final = 0.25
_RAN: Final = (Kind.COMPUTATION, Kind.COLLECTIVE, Kind.COPY)
_OF_HOST: Final = (Kind.LAUNCH_GAP, Kind.HOST, Kind.INPUT)


@dataclass(frozen=True, slots=True)
class _Case:
    """What is written to, and what it is about."""

    scene: Scene
    graph: DependencyGraph
    rows: dict[str, Evidence]
    paths: tuple[DevicePath, ...]
    window: tuple[int, ...]
    history: tuple[int, ...]

    @property
    def steps(self) -> tuple[int, int]:
        """The first and the last step of the window."""
        return self.window[0], self.window[-1]


def follow_device(
    connection: Any, scene: Scene, graph: DependencyGraph, evidence: tuple[Evidence, ...]
) -> tuple[Evidence, ...]:
    """Add to a graph how the causes of ranks go on to their devices, and return the evidence with theirs.

    Args:
        connection: An open store.
        scene: The window.
        graph: The dependency graph; nodes and edges are added, the ends of chains say how many follow.
        evidence: Its rows.
    """
    by_rank: dict[int, list[Edge]] = {}
    for edge in graph.edges():
        attributes = edge.payload.attributes
        if "cause" in attributes and attributes.get("rank") is not None:
            by_rank.setdefault(int(attributes["rank"] or 0), []).append(edge)
    question, data = scene.question, scene.data
    numbers = scene.clock.numbers
    window = numbers[question.start : question.stop]
    history = tuple(numbers[i] for i in question.history)
    if not by_rank or not window:
        return evidence
    every = (*window, *history)
    paths = read_paths(connection, data.job, data.attempt or 0, (min(every), max(every)))
    if not paths:
        return evidence
    rows = {row.id: row for row in evidence}
    case = _Case(scene, graph, rows, paths, window, history)
    for rank, ends in sorted(by_rank.items()):
        of_input = [end for end in ends if _is_input(end)]
        others = [end for end in ends if not _is_input(end)]
        _measure_input(case, rank, of_input)
        _go_on(case, rank, others)
    return tuple(rows[item] for item in sorted(rows))


def _is_input(end: Edge) -> bool:
    return end.payload.attributes.get("magnitude") == str(Signal.INPUT_WAIT)


def _measure_input(case: _Case, rank: int, ends: list[Edge]) -> None:
    """Let waits for input cite how much of the path they are."""
    found = compare_kind(case.paths, rank, case.window, case.history, Kind.INPUT)
    if not ends or found is None or found.value_s <= 0.0:
        return
    cited = _add_row(case, rank, Kind.INPUT, None, found)
    for end in ends:
        ids = (*end.payload.evidence_ids, cited)
        payload = replace(end.payload, evidence_ids=tuple(dict.fromkeys(ids)))
        case.graph.add_edge(end.source, end.target, payload)


def _go_on(case: _Case, rank: int, ends: list[Edge]) -> None:
    """Add what stands on a rank's path, where it explains one of its causes."""
    standing = find_standing(case.paths, rank, case.window, case.history)
    if standing is None:
        return
    excess_s = standing.operation.excess_s or 0.0
    explained = [
        end
        for end in ends
        if excess_s >= MIN_EXPLAINED * float(end.payload.attributes.get("share_s") or 0.0)
    ]
    thread = _thread_of(case.graph, rank)
    if not explained or thread is None:
        return
    added = _add_edges(case, rank, thread, standing)
    for end in explained:
        payload = replace(end.payload, attributes={**end.payload.attributes, GOES_ON: added})
        case.graph.add_edge(end.source, end.target, payload)


def _thread_of(graph: DependencyGraph, rank: int) -> str | None:
    """Return the node of a rank's main thread."""
    found = (
        node
        for node, payload in graph.nodes()
        if payload.kind == "thread" and payload.attributes.get("rank") == rank
    )
    return next(found, None)


def _add_edges(case: _Case, rank: int, thread: str, standing: Standing) -> int:
    """Add device and operation, and the launches between them where the stream ran dry; return how many edges."""
    graph = case.graph
    payload = graph.node(thread)
    host = str(payload.attributes.get("host")) if payload is not None else "unknown"
    whole = _add_row(case, rank, standing.kind, None, standing.whole)
    cited = whole
    if standing.name:
        cited = _add_row(case, rank, standing.kind, standing.name, standing.operation)
    device = node_id("gpu", host, f"rank{rank}")
    graph.add_node(device, NodePayload("gpu", f"device of rank {rank}", {"host": host}))
    host_node = node_id("host", host)
    if graph.node(host_node) is not None:
        graph.add_edge(device, host_node, EdgePayload(EdgeKind.RUNS_ON, None, (), {}))
    operation = node_id("operation", rank, standing.name or str(standing.kind))
    graph.add_node(operation, NodePayload("operation", _label(standing), {}))
    whole_s, own_s = _rounded(standing.whole.excess_s), _rounded(standing.operation.excess_s)
    edges = [(thread, device, EdgeKind.WAITS_FOR, whole_s, whole)]
    source, kind = device, EdgeKind.RUNNING if standing.kind in _RAN else EdgeKind.WAITS_FOR
    if standing.kind in _OF_HOST:
        source, kind = node_id("launches", host, rank), EdgeKind.RUNNING
        if graph.node(source) is None:
            label = f"launches of rank {rank}"
            graph.add_node(source, NodePayload("launches", label, {"host": host}))
        edges.append((device, source, EdgeKind.WAITS_FOR, whole_s, whole))
    edges.append((source, operation, kind, own_s, cited))
    for begin, end, how, seconds, row in edges:
        payload_of_edge = EdgePayload(how, seconds, (row,), {ON_PATH: str(standing.kind)})
        graph.add_edge(begin, end, payload_of_edge)
    return len(edges)


def _label(standing: Standing) -> str:
    if standing.kind is Kind.UNKNOWN:
        return f"end of something that the profile does not tell, while {standing.name} ran"
    return standing.name or "start of what had been launched"


def _add_row(case: _Case, rank: int, kind: Kind, name: str | None, found: Compared) -> str:
    """Add the evidence of a kind, or of an operation; return its id."""
    signal = TIME_OF_KIND[kind] if name is None else f"{OPERATION_SIGNAL}{name}"
    row_id = f"{TIME_OF_KIND[kind]}/rank{rank}" + ("" if name is None else f"/{name}")
    peers = sorted({path.rank for path in case.paths} - {rank}) if found.peers_s is not None else []
    case.rows[row_id] = Evidence(
        id=row_id,
        signal=signal,
        value=_rounded(found.value_s),
        unit="s",
        peers=_rounded(found.peers_s),
        history=_rounded(found.history_s),
        z=None,
        trace_id=None,
        span_id=None,
        query=paths_query(case.scene.data.job, (rank, *peers), case.steps, name),
        attributes={"role": "context"},
    )
    return row_id


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 9) + 0.0
