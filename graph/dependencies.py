"""The dependency graph: jobs, collectives, threads, processes and hosts, joined by edges that carry seconds.

    job -slowed_by-> collective -waits_for-> thread -runnable-> cpu
                                                ^--contends_with-- process

Owns the NetworkX graph (nobody else imports NetworkX): one typed payload per node and edge, ids as documented in
`node_id`. Nothing here decides anything; score reads this graph after it went through the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import networkx as nx
import numpy as np

from rootwalk.graph.model import EdgeKind, EdgePayload, NodePayload

_PAYLOAD = "payload"

# A walker goes back to the symptom with this probability in each step (method C8).
RESTART: Final = 0.15
# The change of all probabilities together at which the walk has settled, and how many steps that may take: with this
# restart an error shrinks to 0.85 of it in each.
_SETTLED: Final = 1e-10
_MAX_STEPS: Final = 200


def node_id(kind: str, *parts: str | int) -> str:
    """Return the id of a node: `kind:a/b`.

    Kinds and parts: job:<id>, rank:<r>, collective:<communicator>/<sequence>, communicator:<name>,
    thread:<host>/<tid>, process:<host>/<pid>, host:<host>, cpu:<host>/<number>, cgroup:<host>/<path>,
    phase:<rank>/<name>, file_system:<host>/<device>, service:<host>/<port>, output:<host>/rank<r>-<kind>,
    signal:<host>/rank<r>, operation:<rank>/<type>, stage:<number>, workload:micro-batches,
    path:<end>/<end> of two ranks or two hosts, gpu:<host>/<device>, launches:<host>/<rank>, disk:<host>/<device>,
    nic:<host>/<device>, memory:<host>, and cpu:<host> for all CPUs of a host. A process of which only the rank is known
    has `rank<r>-…` for its pid, a GPU `rank<r>`; the garbage collector of a rank is a part of its process:
    process:<host>/<pid>/gc.
    """
    return f"{kind}:{'/'.join(str(part) for part in parts)}"


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge as a value."""

    source: str
    target: str
    payload: EdgePayload


class DependencyGraph:
    """A directed graph with at most one edge of each kind between two nodes."""

    def __init__(self) -> None:
        self._graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()

    def add_node(self, node: str, payload: NodePayload) -> None:
        """Add a node, or replace its payload."""
        self._graph.add_node(node, **{_PAYLOAD: payload})

    def add_edge(self, source: str, target: str, payload: EdgePayload) -> None:
        """Add an edge between known nodes, or replace the one of the same kind.

        Raises:
            KeyError: If one of the nodes was never added.
        """
        for node in (source, target):
            if node not in self._graph:
                raise KeyError(node)
        self._graph.add_edge(source, target, key=payload.kind, **{_PAYLOAD: payload})

    def node(self, node: str) -> NodePayload | None:
        """Return a node's payload, or None if it is not in the graph."""
        attributes = self._graph.nodes.get(node)
        return None if attributes is None else attributes[_PAYLOAD]

    def nodes(self) -> Iterator[tuple[str, NodePayload]]:
        """Yield all nodes by id."""
        for node in sorted(self._graph.nodes):
            yield node, self._graph.nodes[node][_PAYLOAD]

    def edges(self) -> Iterator[Edge]:
        """Yield all edges by source, target and kind."""
        for source, target, kind in sorted(self._graph.edges(keys=True)):
            yield Edge(source, target, self._graph.edges[source, target, kind][_PAYLOAD])

    def leaving(self, node: str, kind: EdgeKind) -> list[Edge]:
        """Return the edges of one kind that begin at a node, by target."""
        if node not in self._graph:
            return []
        found = [
            Edge(s, t, d[_PAYLOAD])
            for s, t, k, d in self._graph.out_edges(node, keys=True, data=True)
            if k == kind
        ]
        return sorted(found, key=lambda edge: edge.target)

    def entering(self, node: str, kind: EdgeKind) -> list[Edge]:
        """Return the edges of one kind that end at a node, by source."""
        if node not in self._graph:
            return []
        found = [
            Edge(s, t, d[_PAYLOAD])
            for s, t, k, d in self._graph.in_edges(node, keys=True, data=True)
            if k == kind
        ]
        return sorted(found, key=lambda edge: edge.source)


def page_rank(
    weights: Mapping[tuple[str, str], float], restart: Mapping[str, float]
) -> dict[str, float]:
    """Return the personalised PageRank of each node: where a walker is found that starts at the symptom.

    The walk is `networkx.pagerank`'s with alpha 0.85; that function needs scipy, which nothing else here does. A
    walker at a node that leads nowhere begins anew.

    Args:
        weights: How likely a walker takes each edge, beside the others that leave its source; 0 or more.
        restart: Where it begins, and how likely; the nodes must be ends of edges.

    Returns:
        Probabilities, which sum to 1.

    Raises:
        KeyError: If it begins at a node that has no edge.

    Source:
        MicroRCA (Wu et al., NOMS 2020), section IV-C; CloudRanger (Wang et al., CCGRID 2018), section IV.
    """
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_weighted_edges_from((a, b, w) for (a, b), w in sorted(weights.items()))
    number = {node: index for index, node in enumerate(sorted(graph.nodes))}
    begin = np.zeros(len(number))
    for node, likely in restart.items():
        begin[number[node]] = likely
    begin /= begin.sum()
    edges = list(graph.edges)
    source = np.array([number[a] for a, _ in edges])
    target = np.array([number[b] for _, b in edges])
    weight = np.array([weights[edge] for edge in edges])
    total = np.bincount(source, weight, len(number))
    part = weight / np.where(total > 0.0, total, 1.0)[source]
    found = begin.copy()
    for _ in range(_MAX_STEPS):
        stuck = float(found[total <= 0.0].sum())
        moved = np.bincount(target, found[source] * part, len(number)) + stuck * begin
        after = (1.0 - RESTART) * moved + RESTART * begin
        change = float(np.abs(after - found).sum())
        found = after
        if change < _SETTLED:
            break
    return {node: float(found[index]) for node, index in number.items()}
