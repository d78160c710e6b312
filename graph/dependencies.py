"""The dependency graph: jobs, collectives, threads, processes and hosts, joined by edges that carry seconds.

    job -slowed_by-> collective -waits_for-> thread -runnable-> cpu
                                                ^--contends_with-- process

Owns the NetworkX graph (nobody else imports NetworkX): one typed payload per node and edge, ids as documented in
`node_id`. Nothing here decides anything; score reads this graph after it went through the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

from rootwalk.graph.model import EdgeKind, EdgePayload, NodePayload

_PAYLOAD = "payload"


def node_id(kind: str, *parts: str | int) -> str:
    """Return the id of a node: `kind:a/b`.

    Kinds and parts: job:<id>, rank:<r>, collective:<communicator>/<sequence>, communicator:<name>,
    thread:<host>/<tid>, process:<host>/<pid>, host:<host>, cpu:<host>/<number>, cgroup:<host>/<path>,
    phase:<rank>/<name>, file_system:<host>/<device>, service:<host>/<port>, output:<host>/rank<r>-<kind>,
    signal:<host>/rank<r>, operation:<rank>/<type>, stage:<number>, workload:micro-batches,
    path:<end>/<end> of two ranks or two hosts. A process of which only the rank is known has `rank<r>-…` for its pid;
    the garbage collector of a rank is a part of its process: process:<host>/<pid>/gc.
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
